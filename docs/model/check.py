# ruff: noqa
# The model is dense on purpose, so that it can be read as a whole, together with its README.
# fmt: off
"""Runs the model: `python check.py` (all cases), `python check.py NAME...`, `python check.py --random SECONDS`."""
import collections, random, sys, time
import model as m


def trace(par, s):
    out = []
    while par[s] is not None:
        s, a = par[s]
        out.append(a)
    return out[::-1]


def bfs(cfg, cap, progress=False):
    c = {**m.DEFAULT, **cfg}
    s0 = m.init(c)
    par, q, edges, goals, steps = {s0: None}, collections.deque([s0]), collections.defaultdict(list), [], 0
    while q:
        s = q.popleft()
        if progress and m.goal(s):
            goals.append(s)
        for a, t in m.actions(c, s):
            steps += 1
            if progress and a[0] != "!":
                edges[t].append(s)
            if t not in par:
                par[t] = (s, a)
                v = m.violation(c, t)
                if v:
                    return dict(result=v, states=len(par), trace=trace(par, t), complete=False)
                q.append(t)
        if len(par) > cap:
            return dict(result="no violation", states=len(par), trace=[], complete=False)
    res = dict(result="no violation", states=len(par), trace=[], complete=True)
    if progress:                       # progress: from every reachable state, a state with everything published can be
        ok, q = set(goals), collections.deque(goals)       # reached without a further fault
        while q:
            for p in edges[q.popleft()]:
                if p not in ok:
                    ok.add(p); q.append(p)
        stuck = [s for s in par if s not in ok]
        if stuck:
            res.update(result="P no progress from %d states" % len(stuck), trace=trace(par, stuck[0]))
    return res


def walk(cfg, seconds, seed=1):
    c, rng, n, runs, t0 = {**m.DEFAULT, **cfg}, random.Random(seed), 0, 0, time.time()
    while time.time() - t0 < seconds:
        s, tr = m.init(c), []
        runs += 1
        for _ in range(200):
            acts = list(m.actions(c, s))
            if not acts:
                break
            a, s = rng.choice(acts)
            n += 1; tr.append(a)
            v = m.violation(c, s)
            if v:
                return dict(result=v, states=n, runs=runs, trace=tr, complete=False)
    return dict(result="no violation", states=n, runs=runs, trace=[], complete=False)


A1, A2, AB = (("a1",), ()), (("a1", "a2"), ()), (("a1",), ("b1",))
ONE = dict(drivers=1, starts=0)
TWO = dict(src=A2, faults=0)
DATA = dict(data=True, drivers=1, starts=0, fault_kinds=("lose", "zombie", "retake", "abort"))
WRITTEN = dict(takeover=False)
# name: (config, expected: "" = holds, "!" = a counterexample)
CASES = {
    # the proposed protocol
    "publish before the job, 1 fault":         ({**ONE, "faults": 1, "src": A2, "pub_in_job": False}, ""),
    "one driver, 1 fault":                     ({**ONE, "faults": 1, "src": A2}, ""),
    "one driver, 2 faults":                    ({**ONE, "faults": 2, "src": A2}, ""),
    "one driver, two partitions, 1 fault":     ({**ONE, "faults": 1}, ""),
    "two drivers":                             ({**TWO}, ""),
    "two drivers, 1 fault":                    ({**TWO, "faults": 1, "src": A1}, ""),
    "two drivers, 1 crash or abort":           ({**TWO, "faults": 1, "src": A1, "fault_kinds": ("crash", "abort")}, ""),
    "two drivers, record clean-up":            ({**TWO, "recgc": True}, ""),
    "data plane, 1 fault":                     ({**DATA, "faults": 1, "src": A2}, ""),
    "data plane, two partitions":              ({**DATA, "faults": 1, "src": AB, "own_gc": False}, ""),
    "data plane, 2 faults":                    ({**DATA, "faults": 2, "src": A2, "own_gc": False}, ""),
    "read ahead of the commit":                ({**ONE, "faults": 1, "overlap": True, "src": A2}, ""),
    "read ahead, two drivers":                 ({**TWO, "overlap": True}, ""),
    "clean-up by a mark, 1 fault":             ({**ONE, "faults": 1, "src": A2, "mark": True}, ""),
    "clean-up by a mark, two drivers":         ({**TWO, "mark": True}, ""),
    "consumer removes files, publish by move": ({**TWO, "pub": "rename", "consumer": True}, ""),
    "upsert guarded by version":               ({**TWO, "upsert": "guarded"}, ""),
    "written rules, clean-up after first own commit": ({**TWO, **WRITTEN, "clean": "after first commit"}, ""),
    "the same, generation numbers not unique": ({**TWO, **WRITTEN, "clean": "after first commit", "gen_cia": False}, ""),
    "unknown commit = start the epoch again":  ({**ONE, "faults": 1, "unknown": "restart", "src": A2}, ""),
    "missing staged file = published, right clean-up": ({**TWO, "missing": "skip"}, ""),
    # faults in the first version of the rules
    "H1 clean-up before the fence":            ({**TWO, **WRITTEN}, "!"),
    "H3 clean-up cannot see open segments":    ({**ONE, "faults": 1, "refs_open": False}, "!"),
    "H4 old records deleted, no look after create": ({**TWO, "recgc": True, "recgc_check": False}, "!"),
    "H5 consumer removes files, publish by link":   ({**TWO, "consumer": True}, "!"),
    "H6 idempotent upsert, late repeat":       ({**TWO, "upsert": "plain"}, "!"),
    "H6b the same with one driver, zombie attempt": ({**ONE, "faults": 1, "fault_kinds": ("zpub",), "upsert": "plain"}, "!"),
    "H5b consumer, one driver, zombie attempt": ({**ONE, "faults": 1, "fault_kinds": ("zpub",), "consumer": True}, "!"),
    "H7 publish emits only when it made the file": ({**ONE, "faults": 1, "emit_if_new": True}, "!"),
    # mutants
    "M1 no nonce check":                       ({**DATA, "faults": 1, "check": None}, "!"),
    "M1b control record not compared with what was taken": ({**DATA, "faults": 1, "check": "consumers"}, "!"),
    "M1c only one consumer compared":          ({**DATA, "faults": 1, "check": "one"}, "!"),
    "M2 state cache by epoch number":          ({**DATA, "faults": 1, "src": A2, "cache_by_epoch": True}, "!"),
    "M3 publish before commit":                ({**ONE, "faults": 1, "pub_order": "before", "ghost": False}, "!"),
    "M4 any generation deletes":               ({**TWO, "scope": "any"}, "!"),
    "M4b a lower generation deletes a higher one's": ({**TWO, "scope": "others"}, "!"),
    "M5 commit N+1 before publish N":          ({**ONE, "faults": 0, "commit_needs_pub": False, "ghost": False, "src": A1}, "!"),
    "M6 publish swallows its failure":         ({**ONE, "faults": 1, "swallow": True, "ghost": False, "src": A1}, "!"),
    "M7 a time-out of the commit taken as success": ({**ONE, "faults": 1, "unknown": "assume"}, "!"),
    "M8 'exists' taken as mine":               ({**TWO, "unknown": "assume"}, "!"),
    "M9 read ahead kept after an abort":       ({**ONE, "faults": 1, "overlap": True, "overlap_keep": True}, "!"),
    "M10 rebalance of an unpinned attempt's residual": ({**DATA, "faults": 1, "residual_any": True}, "!"),
}


def main(args):
    cap, wrong = 400000, 0
    if args[:1] == ["--random"]:
        for name, (cfg, want) in CASES.items():
            if not want:
                big = {**cfg, "src": (("a1", "a2", "a3"), ("b1", "b2")), "faults": 4, "starts": cfg.get("starts", 2), "ordered": False}
                r = walk(big, float(args[1]))
                wrong += r["result"] != "no violation"
                print("%-50s %7d walks %9d steps  %s" % (name, r["runs"], r["states"], r["result"]), *r["trace"], sep="\n    ", flush=True)
        return wrong
    if args[:1] == ["--cap"]:
        cap, args = int(args[1]), args[2:]
    small = args[:1] == ["--small"]      # one record only: complete searches of the cases that must hold
    args = args[small:]
    for name, (cfg, want) in CASES.items():
        if small and not want:
            cfg = {**cfg, "src": A1}
        elif small:
            continue
        if args and not any(name.startswith(a) for a in args):
            continue
        t = time.time()
        r = bfs(cfg, cap, progress=not want or not cfg.get("ghost", True))
        ok = (r["result"] == "no violation") == (not want)
        wrong += not ok
        print("%s %-50s %8d states %5.1f s  %s%s" % ("ok  " if ok else "BAD ", name, r["states"], time.time() - t, r["result"],
              "" if r["complete"] or want else "  (cut off at the cap: breadth first, not complete)"), flush=True)
        for a in r["trace"]:
            print("        " + a)
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
