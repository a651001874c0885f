# ruff: noqa
# The model is dense on purpose, so that it can be read as a whole, together with its README.
# fmt: off
"""Explicit-state model of the epoch protocol (docs/protocol.md).  Pure Python; no Spark, no Beam.

A state is one immutable tuple; `actions(cfg, s)` yields every next step of every process.  A paused driver needs no
action: the search does not schedule it.  Each fault takes one from a budget; all other steps are unlimited.
README.md says what is modelled and how to run it (check.py).
"""
from typing import NamedTuple

SRC = (("a1", "a2"), ("b1",))            # two partitions; key 'a' lives on 0, key 'b' on 1


class Rec(NamedTuple):                   # a commit record
    n: int
    gen: int
    by: tuple                            # identity of the writer: (driver, attempt, ...); tells a driver whether a record is its own
    parent: object                       # ghost: `by` of record n-1 that it was computed from
    pos: tuple                           # residuals: position per partition
    state: object                        # name of the state run
    open: tuple                          # rolling file: names of its staged segments, in order
    pubs: tuple                          # Publications: (final name, staged names)
    seen: tuple                          # what the publish steps emitted and the graph has taken in
    hist: tuple                          # ghost: final names of all Publications of earlier records


class Drv(NamedTuple):
    pc: str = "none"
    me: int = 0                          # incarnation, unique (stands for the nonce of the process)
    gen: int = 0
    base: object = None                  # last commit record as this driver knows it
    att: int = 0                         # attempt of the epoch
    todo: frozenset = frozenset()        # files that it has decided to delete, and deletes at any later time
    sweep: object = None                 # own committed record by which it chooses the files to delete
    pubi: int = 0                        # publications of base done
    buf: object = None                   # publish: content read, not yet put
    emit: tuple = ()
    cand: object = None                  # record to commit
    spec: object = None                  # overlap: read of the next epoch (starts, ends)
    grp: tuple = ()                      # data plane: partitions per read task (what rebalance dealt)
    blk: tuple = ()                      # blocks per task: frozenset of (nonce, ends)
    pin: tuple = ()                      # control record per task that reached the driver: (nonce, ends)
    got: tuple = ()                      # what each consumer took per task: (nonce, ends)


class S(NamedTuple):
    recs: tuple                          # ((n, Rec), ...) sorted
    gens: int = 0                        # highest claimed generation (if generations are a separate counter)
    files: frozenset = frozenset()       # staged segments and state runs: (name, content)
    final: frozenset = frozenset()       # visible published files: (name, content)
    log: tuple = ()                      # ghost: every creation or change of a published file, in order
    table: tuple = (0, 0)                # upsert sink: version per key
    drv: tuple = ()
    cache: frozenset = frozenset()       # executors' state caches: (executor, id, counts)
    flight: frozenset = frozenset()      # conditional puts in flight whose sender got no answer
    inc: int = 0
    starts: int = 0                      # second drivers that may still be started while one lives
    faults: int = 0
    bad: str = ""


DEFAULT = dict(src=SRC, ghost=True,
    drivers=2, starts=1, faults=1, data=False, fault_kinds=("crash", "abort", "pubfail", "unknown"),
    takeover=True, gen_cia=True, clean=True, mark=False, scope="lower", refs_open=True, own_gc=True,   # fencing and clean-up
    pub="link", pub_order="after", commit_needs_pub=True, swallow=False, emit_if_new=False, missing="fence",
    ordered=True, recgc=False, recgc_check=True, unknown="resolve", consumer=False, upsert=None,
    overlap=False, overlap_keep=False, check="all", pub_in_job=True, cache_by_epoch=False, residual_any=False, lost_takeover="reread")


def init(c):
    global SRC
    SRC = c["src"]
    r0 = Rec(0, 0, ("init",), None, (0, 0), "st0", (), (), (), ())
    return S(((0, r0),), files=frozenset({("st0", (0, 0))}), drv=(Drv(),) * c["drivers"], starts=c["starts"],
             faults=c["faults"])


def last(s): return s.recs[-1][1]
def fkey(name): return name[1:3] if isinstance(name, tuple) else (0, 0)
def fgen(name): return fkey(name)[0]
def dead(c, f, r):
    """Return whether a driver may delete f after it committed r.  r names either all files that it needs, or only the oldest."""
    if c["mark"]:
        return fkey(f) < min((fkey(x) for x in refs(c, r)), default=(r.gen, r.n))
    return f not in refs(c, r) and fkey(f) <= (r.gen, r.n)
def refs(c, r):
    """Return the names of the files that clean-up must keep while r is the last record."""
    out = {r.state} | {x for _, segs in r.pubs for x in segs}
    return out | set(r.open) if c["refs_open"] else out


def put_rec(c, s, r):
    """Create record r.n if it is absent.  Returns (created, state)."""
    if any(n == r.n for n, _ in s.recs):
        return False, s
    return True, s._replace(recs=tuple(sorted(s.recs + ((r.n, r),), key=lambda x: x[0])))


def set_d(s, i, d, **kw): return s._replace(drv=s.drv[:i] + (d,) + s.drv[i + 1:], **kw)


def fresh_epoch(d, **kw):
    return d._replace(pc="pub", pubi=0, emit=(), buf=None, cand=None, grp=(), blk=(), pin=(), got=(), **kw)


def ends_from(pos, parts=(0, 1)):
    """Return all end positions that a read may reach, for the given partitions."""
    out = [()]
    for p in parts:
        out = [o + ((p, e),) for o in out for e in range(pos[p], len(SRC[p]) + 1)]
    return out


def make_cand(c, d, start, took, pos, counts, roll):
    """prepare: the state run, the segment, perhaps the roll; and the record that names them."""
    b, n = d.base, d.base.n + 1
    content = tuple(x for p in (0, 1) for x in SRC[p][start[p]:took[p]])
    tag = (d.gen, n, d.me, d.att)
    new = {(("st",) + tag, counts)}
    segs = b.open
    if content:
        new.add((("seg",) + tag, content)); segs += (("seg",) + tag,)
    pubs = ()
    if roll:
        pubs, segs = (((("f",) + tag), segs),), ()
    return Rec(n, d.gen, (d.me, d.att), b.by, pos, ("st",) + tag, segs, pubs, b.seen + d.emit,
               b.hist + tuple(f for f, _ in b.pubs)), new, content


def publish(c, s, name, content, n):
    """The sink's idempotent step: create-if-absent for files; upsert for the table."""
    if not any(f == name for f, _ in s.final):
        s = s._replace(final=s.final | {(name, content)}, log=s.log + ((name, content),))
    elif (name, content) not in s.final:
        s = s._replace(bad="a published file changed")
    if c["upsert"]:
        t = list(s.table)
        for k, v in {"ab".index(x[0]): int(x[1]) for x in content}.items():
            if c["upsert"] == "plain" or v > t[k]:
                if v < t[k]:
                    s = s._replace(bad="upsert went back: a late repeat overwrote a newer row")
                t[k] = v
        s = s._replace(table=tuple(t))
    return s


def committed(c, s, i, d, r):
    """The driver knows that its record r was created."""
    if c["recgc"] and c["recgc_check"] and last(s).n > r.n:
        return set_d(s, i, d._replace(pc="stopped"))
    first = d.base.by[0] != d.me
    sweep = r if c["own_gc"] or (first and c["clean"]) else d.sweep
    spec = d.spec
    d2 = fresh_epoch(d, base=r, att=0, spec=spec, sweep=sweep)
    if c["pub_order"] == "before":
        d2 = d2._replace(pubi=len(r.pubs))
    return set_d(s, i, d2)


def commit_steps(c, s, i, d, r, on_lost):
    ok, s2 = put_rec(c, s, r)
    if ok:
        yield "commit %d" % r.n, committed(c, s2, i, d, r)
    else:
        mine = any(n == r.n and x == r for n, x in s.recs)
        if mine or c["unknown"] == "assume":
            yield "commit %d: exists, taken as mine" % r.n, committed(c, s, i, d, r)
        else:
            yield "commit %d: lost the race" % r.n, set_d(s, i, on_lost)
    if s.faults and "unknown" in c["fault_kinds"]:
        f = s._replace(faults=s.faults - 1)
        again = d if c["unknown"] == "resolve" else fresh_epoch(d, att=d.att + 1)
        if c["unknown"] == "assume":     # a time-out read as success
            yield "!commit %d times out, not landed, taken as done" % r.n, committed(c, f, i, d, r)
        yield "!commit %d times out, request still under way" % r.n, set_d(f, i, again, flight=s.flight | {r})
        if ok:
            yield "!commit %d times out, landed" % r.n, set_d(put_rec(c, f, r)[1], i, again)


def actions(c, s):
    for r in s.flight:                   # an old request arrives
        if not isinstance(r, Rec):
            yield "zombie publish attempt ends: %s" % (r[0],), publish(c, s, *r)._replace(flight=s.flight - {r})
            continue
        yield "late put of record %d arrives" % r.n, put_rec(c, s, r)[1]._replace(flight=s.flight - {r})
    if c["consumer"]:
        for f in s.final:
            yield "consumer takes %s" % (f[0],), s._replace(final=s.final - {f})
    down = all(d.pc in ("none", "dead", "stopped", "failed") for d in s.drv)
    for i, d in enumerate(s.drv):
        w = "D%d." % i
        if d.pc in ("none", "dead", "stopped", "failed"):
            if down or (s.starts and d.pc == "none"):
                yield w + "start", set_d(s, i, Drv("boot", s.inc + 1), inc=s.inc + 1, starts=s.starts - (not down))
            continue
        if s.faults and "crash" in c["fault_kinds"]:
            yield "!" + w + "crash", set_d(s, i, Drv("dead"), faults=s.faults - 1)
        if d.sweep:                      # the clean-up rule: (generation, epoch) <= that of my record, and my record does not name the file
            r = d.sweep
            yield w + "list files to delete", set_d(s, i, d._replace(sweep=None, todo=d.todo | frozenset(
                f for f, _ in s.files if dead(c, f, r) or (f not in refs(c, r) and (
                    c["scope"] == "any" or (c["scope"] == "others" and f[3] != d.me))))))
        for f in sorted(d.todo, key=repr)[:1 if c["ordered"] else None]:
            yield w + "delete %s" % (f,), set_d(s, i, d._replace(todo=d.todo - {f}),
                                                files=frozenset(x for x in s.files if x[0] != f))
        for a, t in driver(c, s, i, d):
            yield (("!" + w + a[1:]) if a[0] == "!" else w + a), t


def driver(c, s, i, d):
    b = d.base
    if d.pc == "boot":
        yield "read last record %d" % last(s).n, set_d(s, i, d._replace(pc="claim", base=last(s), gen=s.gens + 1))
    elif d.pc == "claim" and c["takeover"]:            # fence first: one record that copies the whole state of the last one
        r = b._replace(n=b.n + 1, gen=b.n + 1, by=(d.me, "take"), parent=b.by)
        for a, t in commit_steps(c, s, i, d, r, d._replace(pc="boot" if c["lost_takeover"] == "reread" else "stopped")):
            e = t.drv[i]
            if e.pc == "pub" and e.base == r:
                t = set_d(t, i, e._replace(gen=r.gen))
            elif e.pc == "pub":
                t = set_d(t, i, d)                     # unknown outcome: ask again
            yield "take over: " + a, t
    elif d.pc == "claim":                              # as first proposed: a generation number, then clean-up, then work
        if not c["gen_cia"] or d.gen == s.gens + 1:
            todo = frozenset(f for f, _ in s.files if f not in refs(c, b) and
                             (fgen(f) < d.gen or c["scope"] == "any")) if c["clean"] else frozenset()
            if c["clean"] == "after first commit":
                todo = frozenset()
            yield "claim generation %d" % d.gen, set_d(s, i, fresh_epoch(d, todo=todo), gens=max(s.gens, d.gen))
        else:
            yield "generation taken, read again", set_d(s, i, d._replace(pc="boot"))
    elif d.pc == "pub":
        if d.pubi < len(b.pubs):
            yield from publish_steps(c, s, i, d)
        if d.pubi == len(b.pubs) or c["pub_in_job"] or not c["commit_needs_pub"]:
            yield from (read_steps if c["data"] else stage_steps)(c, s, i, d)
    elif d.pc == "job":                                # everything is staged; the job ends when the publish step has ended too
        if d.pubi < len(b.pubs):
            yield from publish_steps(c, s, i, d)
        if d.pubi == len(b.pubs) or not c["commit_needs_pub"]:
            if c["data"] and not pins_agree(c, d):
                yield "job ends, attempts differ: abort", set_d(s, i, fresh_epoch(d, att=d.att + 1))
            else:
                pubi = 0 if c["pub_order"] == "before" else d.pubi
                yield "job ends", set_d(s, i, d._replace(pc="commit", pubi=pubi, cand=d.cand._replace(seen=b.seen + d.emit)))
        if s.faults and "abort" in c["fault_kinds"]:
            yield "!job of epoch %d fails" % d.cand.n, set_d(s, i, fresh_epoch(d, att=d.att + 1), faults=s.faults - 1)
    elif d.pc == "commit":
        if c["pub_order"] == "before" and d.pubi < len(d.cand.pubs):
            f, segs = d.cand.pubs[0]
            body = sum((dict(s.files).get(x, ()) for x in segs), ())
            yield "publish before commit %s" % (f,), set_d(publish(c, s, f, body, d.cand.n), i, d._replace(pubi=1))
        else:
            yield from commit_steps(c, s, i, d, d.cand, d._replace(pc="stopped"))
        if c["overlap"] and not d.spec:
            for e in ends_from(d.cand.pos):
                if dict(e) != dict(enumerate(d.cand.pos)):
                    yield "read ahead to %s" % (e,), set_d(s, i, d._replace(spec=(d.cand.pos, tuple(x for _, x in e))))
        if s.faults and "abort" in c["fault_kinds"]:
            yield "!epoch %d aborts" % d.cand.n, set_d(
                s, i, fresh_epoch(d, att=d.att + 1, spec=d.spec if c["overlap_keep"] else None), faults=s.faults - 1)
    if c["recgc"] and d.pc == "pub" and len(s.recs) > 1 and b == last(s):
        yield "delete old records", s._replace(recs=s.recs[-1:])


def publish_steps(c, s, i, d):
    b = d.base
    f, segs = b.pubs[d.pubi]
    there = any(x == f for x, _ in s.final)
    files = dict(s.files)
    done = lambda new: d._replace(pubi=d.pubi + 1, buf=None, emit=d.emit + ((f,) if new or not c["emit_if_new"] else ()))
    if s.faults and "pubfail" in c["fault_kinds"]:
        g = s._replace(faults=s.faults - 1)
        yield "!publish %s fails" % (f,), set_d(g, i, done(True)) if c["swallow"] else g
    if c["pub"] == "rename":             # one atomic move of the complete staged file; a late repetition finds nothing to move
        gone = [x for x in segs if x not in files]
        if gone:
            yield "publish: already moved", set_d(s, i, done(False))
        else:
            t = publish(c, s, f, sum((files[x] for x in segs), ()), b.n)
            yield "publish (move) %s" % (f,), set_d(t, i, done(True), files=frozenset(x for x in s.files if x[0] not in segs))
    elif d.buf is None:
        if any(x not in files for x in segs):
            if last(s).n > b.n:
                yield "publish: fenced, stop", set_d(s, i, d._replace(pc="stopped"))
            elif there or c["missing"] == "skip":
                yield "publish: already there", set_d(s, i, done(False))
            else:
                yield "publish: staged file is gone", s._replace(bad="committed publication %s lost its staged file" % (f,))
        else:
            yield "publish: read %s" % (f,), set_d(s, i, d._replace(buf=sum((files[x] for x in segs), ())))
    else:
        if s.faults and "zpub" in c["fault_kinds"]:
            g = s._replace(faults=s.faults - 1, flight=s.flight | {(f, d.buf, b.n)})
            yield "!publish attempt of %s becomes a zombie, another one runs" % (f,), g
        yield "publish: put %s" % (f,), set_d(publish(c, s, f, d.buf, b.n), i, done(not there))


def counts_of(s, name): return dict(s.files).get(name)


def stage_steps(c, s, i, d):
    """read, process and prepare in one step (control-plane profile)."""
    b = d.base
    before = counts_of(s, b.state)
    if before is None:
        if last(s).n > b.n:
            yield "state gone: fenced, stop", set_d(s, i, d._replace(pc="stopped"))
        else:
            yield "state gone", s._replace(bad="the last record's state run is gone")
        return
    options = [(d.spec[0], d.spec[1])] if d.spec else [(b.pos, tuple(x for _, x in e)) for e in ends_from(b.pos)]
    for start, took in options:
        for roll in (False, True):
            counts = tuple(before[p] + took[p] - start[p] for p in (0, 1))
            r, new, content = make_cand(c, d, start, took, took, counts, roll)
            if (content or roll) and (not roll or r.pubs[0][1]) or (b.pubs and not content and not roll):
                yield "stage to %s%s" % (took, " and roll" if roll else ""), set_d(
                    s, i, d._replace(pc="job", cand=r, spec=None), files=s.files | new)


def pins_agree(c, d):
    """The pin rule: before the commit, all consumers and the control record must have data of the same attempt of each task."""
    return c["check"] is None or all(
        len({x for x, _ in got} | ({pin[0]} if c["check"] == "all" else set())) == 1
        for got, pin in ((g[:1] if c["check"] == "one" else g, p) for g, p in zip(d.got, d.pin)))


def sub(tup, t, v): return tup[:t] + (v,) + tup[t + 1:]


def read_steps(c, s, i, d):
    """Data-plane profile: tasks, attempts, blocks, lost executors, zombies, state cache.  One epoch is one job: two
    consumers, the count (0) and the file (1), each take one block of every read task, from whichever attempt it finds."""
    b = d.base
    if not d.grp:
        for grp in (((0,), (1,)), ((0, 1),)):          # what rebalance may deal
            yield "rebalance %s" % (grp,), set_d(s, i, d._replace(
                grp=grp, blk=(frozenset(),) * len(grp), pin=(None,) * len(grp), got=((None, None),) * len(grp)))
        return
    for t, parts in enumerate(d.grp):
        for e in ends_from(b.pos, parts):
            if not d.blk[t]:
                yield "read task %d to %s" % (t, e), set_d(s, i, d._replace(blk=sub(d.blk, t, frozenset({(1, e)}))))
            elif s.faults and (d.pin[t] is None or None in d.got[t]):
                k = 1 + max(x for x, _ in d.blk[t])
                pin = sub(d.pin, t, (d.pin[t][0], e)) if c["residual_any"] and d.pin[t] else d.pin
                if "lose" in c["fault_kinds"]:
                    yield "!executor lost: task %d runs again to %s" % (t, e), set_d(s, i, d._replace(
                        blk=sub(d.blk, t, frozenset({(k, e)})), pin=pin), faults=s.faults - 1)
                if "zombie" in c["fault_kinds"]:
                    yield "!zombie attempt of task %d reached %s" % (t, e), set_d(s, i, d._replace(
                        blk=sub(d.blk, t, d.blk[t] | {(k, e)}), pin=pin), faults=s.faults - 1)
    if not all(d.blk):
        return
    for t in range(len(d.grp)):
        for block in d.blk[t]:
            if d.pin[t] is None:
                yield "control record of task %d comes from attempt %d" % (t, block[0]), set_d(
                    s, i, d._replace(pin=sub(d.pin, t, block)))
            for k in (0, 1):
                if d.got[t][k] is None:
                    yield "consumer %d takes block %d of task %d" % (k, block[0], t), set_d(
                        s, i, d._replace(got=sub(d.got, t, sub(d.got[t], k, block))))
    for k in (0, 1):
        if s.faults and "retake" in c["fault_kinds"] and any(g[k] for g in d.got):
            yield "!consumer %d is lost and takes its blocks again" % k, set_d(
                s, i, d._replace(got=tuple(sub(g, k, None) for g in d.got)), faults=s.faults - 1)
    if None in d.pin or any(None in g for g in d.got):
        return
    pos = dict(x for _, e in d.pin for x in e)
    took = [dict(x for g in d.got for x in g[k][1]) for k in (0, 1)]
    pos, took = (pos[0], pos[1]), [(x[0], x[1]) for x in took]
    if took[0] == took[1] == b.pos == pos and not b.open and not b.pubs:
        yield "nothing read: idle", set_d(s, i, fresh_epoch(d, att=d.att))
    if not pins_agree(c, d):                           # also if the mixture of attempts has nothing to stage
        yield "job ends with nothing staged, attempts differ: abort", set_d(s, i, fresh_epoch(d, att=d.att + 1))
    for ex in (0, 1):                                  # the executor that runs the stateful task
        key = b.n if c["cache_by_epoch"] else b.state
        hit = [v for e, k, v in s.cache if e == ex and k == key]
        before = hit[0] if hit else counts_of(s, b.state)
        for roll in (False, True):
            counts = tuple(before[p] + took[0][p] - b.pos[p] for p in (0, 1))
            r, new, content = make_cand(c, d, b.pos, took[1], pos, counts, roll)
            if (content or roll or took[0] != b.pos) and (not roll or r.pubs[0][1]) or (b.pubs and not content and not roll):
                key2 = r.n if c["cache_by_epoch"] else r.state
                old = [k for e, k, v in s.cache if e == ex and k == key2]
                cache = s.cache if old else s.cache | {(ex, key2, counts)}
                cache = frozenset(x for x in cache if x[1] in (key, key2))      # a cache of the newest two only
                yield "prepare on executor %d to %s%s" % (ex, took[1], " and roll" if roll else ""), set_d(
                    s, i, d._replace(pc="job", cand=r), files=s.files | new, cache=cache)


def violation(c, s):
    """Check the invariants.  Returns a description of the violation, or ''."""
    if s.bad:
        return "I0 " + s.bad
    out = [x for _, body in s.log for x in body]
    for p in (0, 1):
        mine = tuple(x for x in out if x in SRC[p])
        if mine != SRC[p][:len(mine)]:
            return "I1 published exactly once, in order per key: %s" % (mine,)
    if len({f for f, _ in s.log}) != len(s.log):
        return "I2 a published file was created twice"
    if not c["consumer"] and s.final != frozenset(s.log):
        return "I2 a published file was removed or changed"
    r, files = last(s), dict(s.files)
    have = {f for f, _ in s.final} if not c["consumer"] else {f for f, _ in s.log}
    if r.state not in files:
        return "I3 record %d names a state run that is gone" % r.n
    if files[r.state] != r.pos:
        return "I4 state not exact: counts %s, positions %s" % (files[r.state], r.pos)
    if any(x not in files for x in r.open):
        return "I3 record %d names an open segment that is gone" % r.n
    if any(f not in have and any(x not in files for x in segs) for f, segs in r.pubs):
        return "I3 record %d names a staged file that is gone and not published" % r.n
    if c["ghost"] and r.seen != r.hist:
        return "I5 what publish emitted was not taken in exactly once: %s, published %s" % (r.seen, r.hist)
    byn = dict(s.recs)
    for n, x in s.recs:
        if not c["recgc"] and n - 1 in byn and x.parent != byn[n - 1].by:
            return "I6 record %d was not computed from record %d" % (n, n - 1)
    want = [f for f in r.hist]
    if c["ghost"] and any(f not in {g for g, _ in s.log} for f in want):
        return "I1 record %d follows a publication that never happened" % r.n
    return ""


def goal(s):
    return sum(len(b) for _, b in s.log) == sum(map(len, SRC))
