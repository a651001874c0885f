"""SQL text as a list of tokens, for both dialects, and a reader that walks over it.

Only as much as the statements that the service takes: DDL, change stream queries and simple SELECTs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock_emulators.simulated_spanner.column_type import POSTGRESQL
from penstock_emulators.simulated_spanner.errors import invalid

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|\#[^\n]*|/\*.*?\*/)
  | (?P<string>[rR]?'''(?:.*?)'''|[rR]?\"\"\"(?:.*?)\"\"\"|[rR]?'(?:[^'\\]|\\.|'')*'|[rR]?"(?:[^"\\]|\\.)*")
  | (?P<quoted>`[^`]*`)
  | (?P<parameter>@\w+|\$\d+)
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark>=>|::|<>|!=|<=|>=|\|\||[-+*/(),;.<>=\[\]{}@])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `kind` is word, name (a quoted identifier), string, number, parameter, mark or end.

    `text` is what it means: a string without quotes and escapes, a parameter without its @ or $.
    """

    kind: str
    text: str


_END = Token("end", "")


def tokenize(sql: str, dialect: str) -> list[Token]:
    """Return the tokens of a statement.

    Raises:
        ServiceError: a character that no token begins with.
    """
    tokens: list[Token] = []
    position = 0
    while position < len(sql):
        found = _TOKEN.match(sql, position)
        if found is None:
            raise invalid(f"Syntax error: illegal input character {sql[position]!r}")
        position = found.end()
        kind, text = found.lastgroup or "", found.group()
        if kind == "space":
            continue
        tokens.append(_token(kind, text, dialect))
    return tokens


def _token(kind: str, text: str, dialect: str) -> Token:
    if kind == "quoted":
        return Token("name", text[1:-1])
    if kind == "parameter":
        return Token("parameter", text[1:] if text[0] == "@" else f"p{text[1:]}")
    if kind != "string":
        return Token(kind, text)
    if dialect == POSTGRESQL and text[0] == '"':
        return Token("name", text[1:-1].replace('""', '"'))
    return Token("string", _unquoted(text, dialect))


def _unquoted(text: str, dialect: str) -> str:
    if text[0] in "rR":
        return text[4:-3] if text[1:4] in ("'''", '"""') else text[2:-1]
    body = text[3:-3] if text[:3] in ("'''", '"""') else text[1:-1]
    if dialect == POSTGRESQL:
        return body.replace("''", "'")
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), body)


class Reader:
    """Walks over tokens; each method that fails names what was expected."""

    def __init__(self, tokens: list[Token], dialect: str) -> None:
        self._tokens = tokens
        self._dialect = dialect
        self.position = 0

    @property
    def dialect(self) -> str:
        """The dialect of the database."""
        return self._dialect

    @property
    def next(self) -> Token:
        """The token at the reader's position; one of kind "end" after the last."""
        return self.ahead(0)

    def ahead(self, count: int) -> Token:
        """Return the token `count` tokens after the next one."""
        index = self.position + count
        return self._tokens[index] if index < len(self._tokens) else _END

    def take(self) -> Token:
        """Return the next token and step over it."""
        token = self.next
        self.position += 1
        return token

    def at_words(self, words: str) -> bool:
        """Return whether the next tokens are these keywords or marks, ignoring case."""
        return all(
            self.ahead(number).kind in ("word", "mark") and self.ahead(number).text.upper() == word
            for number, word in enumerate(words.split())
        )

    def accept(self, words: str) -> bool:
        """Step over these keywords or marks if they come next; return whether they did."""
        if not self.at_words(words):
            return False
        self.position += len(words.split())
        return True

    def expect(self, words: str) -> None:
        """Step over these keywords or marks.

        Raises:
            ServiceError: something else comes next.
        """
        if not self.accept(words):
            raise invalid(f"Syntax error: expected {words} but got {self.next.text or 'end of input'!r}")

    def identifier(self) -> str:
        """Take one identifier; PostgreSQL folds it to lower case unless it is quoted."""
        token = self.take()
        if token.kind == "name":
            return token.text
        if token.kind != "word":
            raise invalid(f"Syntax error: expected an identifier but got {token.text or 'end of input'!r}")
        return token.text.lower() if self._dialect == POSTGRESQL else token.text

    def path(self) -> str:
        """Take a name that may have parts, such as a table in a named schema, joined by dots."""
        parts = [self.identifier()]
        while self.accept("."):
            parts.append(self.identifier())
        if self._dialect == POSTGRESQL and parts[0] == "public" and len(parts) > 1:
            parts = parts[1:]
        return ".".join(parts)

    def finish(self) -> None:
        """Raise INVALID_ARGUMENT unless the statement ends here, but for a semicolon."""
        self.accept(";")
        if self.next.kind != "end":
            raise invalid(f"Syntax error: unexpected {self.next.text!r}")

    def skip_parentheses(self) -> None:
        """Step over a pair of parentheses and all between them."""
        self.expect("(")
        depth = 1
        while depth:
            token = self.take()
            if token.kind == "end":
                raise invalid("Syntax error: a parenthesis is not closed")
            depth += (token == Token("mark", "(")) - (token == Token("mark", ")"))
