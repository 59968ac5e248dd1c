"""llama.cpp's grammar notation (GBNF), turned into llguidance's. Pure.

llguidance ships a converter; it stumbles over `\\x`, `\\u` and `{0}`, lets `.` stop at a new line, and takes `&&` in a
character class for an operator, so this is one of our own. llguidance splits a text into terminals first and always
takes the longest, where llama.cpp follows all ways. So a grammar that does not recurse becomes one terminal, and in one
that does each character is a terminal: slower, but the same texts.
"""

import re
from typing import ClassVar, NamedTuple

from tasks.grammar_error import GrammarError

MAX_SOURCE_BYTES = 64 * 1024
MAX_REPEAT = 2000  #: as llama.cpp
MAX_DEPTH = 100  #: groups within groups


class Chars(NamedTuple):
    regex: str  #: of one character; never has a space in it


class Ref(NamedTuple):
    name: str
    line: int


class Repeat(NamedTuple):
    node: "Node"
    least: int
    most: int | None


class Group(NamedTuple):
    alternatives: list[list["Node"]]


Node = Chars | Ref | Repeat | Group


def lark_from_gbnf(source: str) -> str:
    """The grammar in llguidance's Lark dialect. Raises GrammarError, with the line."""
    if len(source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        raise GrammarError(f"The grammar is longer than {MAX_SOURCE_BYTES} bytes.")
    rules = _Parser(source).rules()
    if "root" not in rules:
        raise GrammarError("The grammar has no rule `root`.")
    for rule in rules.values():
        for ref in _refs(rule):
            if ref.name not in rules:
                raise GrammarError(
                    f"The grammar's line {ref.line} uses the rule `{ref.name}`, which it does not define."
                )
    return _Writer(rules).text()


def _refs(node: Node) -> list[Ref]:
    if isinstance(node, Ref):
        return [node]
    if isinstance(node, Repeat):
        return _refs(node.node)
    if isinstance(node, Group):
        return [ref for sequence in node.alternatives for inner in sequence for ref in _refs(inner)]
    return []


class _Parser:
    _NAME = re.compile(r"[A-Za-z0-9_-]+")
    _COUNT = re.compile(r"\{\s*(\d+)\s*(,\s*(\d*)\s*)?\}")
    _HEX: ClassVar = {"x": 2, "u": 4, "U": 8}
    _ESCAPES: ClassVar = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]"}

    def __init__(self, source: str) -> None:
        self._text = source
        self._pos = 0

    def rules(self) -> dict[str, Group]:
        rules: dict[str, Group] = {}
        self._skip(newlines=True)
        while self._pos < len(self._text):
            name = self._name("a rule's name")
            self._skip(newlines=False)
            if not self._text.startswith("::=", self._pos):
                self._fail(f"after `{name}` comes `::=`")
            self._pos += 3
            self._skip(newlines=True)
            rules[name] = self._alternatives(0)
            if self._peek() not in ("", "\n", "\r"):
                self._fail(f"`{self._peek()}` cannot stand here")
            self._skip(newlines=True)
        return rules

    def _fail(self, problem: str) -> None:
        line = self._text.count("\n", 0, self._pos) + 1
        raise GrammarError(f"The grammar's line {line} cannot be read: {problem}.")

    def _peek(self) -> str:
        return self._text[self._pos : self._pos + 1]

    def _skip(self, newlines: bool) -> None:
        blank = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*" if newlines else r"[ \t]*(?:#[^\n]*)?")
        found = blank.match(self._text, self._pos)
        self._pos = found.end() if found else self._pos

    def _name(self, what: str) -> str:
        found = self._NAME.match(self._text, self._pos)
        if found is None:
            self._fail(f"{what} is missing")
            return ""
        self._pos = found.end()
        return found[0]

    def _alternatives(self, depth: int) -> Group:
        if depth > MAX_DEPTH:
            self._fail(f"groups are nested deeper than {MAX_DEPTH} levels")
        alternatives = [self._sequence(depth)]
        while self._peek() == "|":
            self._pos += 1
            self._skip(newlines=True)
            alternatives.append(self._sequence(depth))
        return Group(alternatives)

    def _sequence(self, depth: int) -> list[Node]:
        nodes: list[Node] = []
        while (node := self._element(depth)) is not None:
            self._skip(newlines=depth > 0)
            while (repeated := self._repeated(node)) is not None:
                node = repeated
                self._skip(newlines=depth > 0)
            nodes.append(node)
        return nodes

    def _element(self, depth: int) -> Node | None:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == ".":
            self._pos += 1
            return Chars("(?s:.)")
        if char == "(":
            self._pos += 1
            self._skip(newlines=True)
            group = self._alternatives(depth + 1)
            if self._peek() != ")":
                self._fail("a `(` is not closed")
            self._pos += 1
            return group
        if char in ("<", "!"):
            self._fail("tokens in a grammar are not supported")
        if char and self._NAME.match(char):
            line = self._text.count("\n", 0, self._pos) + 1
            return Ref(self._name("a rule's name"), line)
        return None

    def _repeated(self, node: Node) -> Repeat | None:
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        char = self._peek()
        if char in bounds and char:
            self._pos += 1
            return Repeat(node, *bounds[char])
        if char != "{":
            return None
        found = self._COUNT.match(self._text, self._pos)
        if found is None:
            self._fail("a repetition is `{m}`, `{m,}` or `{m,n}`")
            return None
        least = int(found[1][:9])
        most = least if found[2] is None else int(found[3][:9]) if found[3] else None
        if least > MAX_REPEAT or (most or 0) > MAX_REPEAT:
            self._fail(f"more than {MAX_REPEAT} repetitions")
        if most is not None and most < least:
            self._fail(f"a repetition of at least {least} and at most {most}")
        self._pos = found.end()
        return Repeat(node, least, most)

    def _char(self, closing: str) -> str:
        char = self._peek()
        if not char:
            self._fail(f"`{closing}` is missing")
        self._pos += 1
        if char != "\\":
            return char
        char = self._peek()
        self._pos += 1
        if char in self._ESCAPES and char:
            return self._ESCAPES[char]
        digits = self._text[self._pos : self._pos + self._HEX.get(char, 0)]
        if digits and len(digits) == self._HEX[char] and re.fullmatch("[0-9A-Fa-f]+", digits):
            self._pos += len(digits)
            code = int(digits, 16)
            if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                return chr(code)
        self._fail(f"`\\{char}{digits}` is no escape")
        return ""

    def _literal(self) -> Group:
        self._pos += 1
        chars: list[Node] = []
        while self._peek() != '"':
            chars.append(Chars(_quoted(self._char('"'))))
        self._pos += 1
        return Group([chars])

    def _char_class(self) -> Chars:
        self._pos += 1
        is_negated = self._peek() == "^"
        self._pos += is_negated
        parts = ""
        while self._peek() != "]":
            first = last = self._char("]")
            if self._peek() == "-" and self._text[self._pos + 1 : self._pos + 2] not in ("]", ""):
                self._pos += 1
                last = self._char("]")
            if last < first:
                self._fail(f"`{first}-{last}` is no range")
            parts += _quoted(first) if first == last else f"{_quoted(first)}-{_quoted(last)}"
        self._pos += 1
        if not parts:
            return Chars("(?s:.)" if is_negated else r"[^\x{0}-\x{10FFFF}]")
        return Chars(f"[{'^' * is_negated}{parts}]")


def _quoted(char: str) -> str:
    """The character in a regular expression, in a class or not."""
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"


class _Writer:
    """Writes what `root` reaches: all of it as terminals (upper case) when none of it recurses, else all as rules, in
    which each character is a terminal of its own."""

    def __init__(self, rules: dict[str, Group]) -> None:
        self._rules = rules
        self._numbers: dict[str, int] = {}
        waiting = ["root"]
        while waiting:
            name = waiting.pop()
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                waiting += [ref.name for ref in _refs(rules[name])]
        self._is_regular = _is_regular({name: rules[name] for name in self._numbers})

    def text(self) -> str:
        lines = [f"{self._label(name)}: {self._alternatives(self._rules[name])}" for name in self._numbers]
        return "\n".join(["%llguidance {}", f"start: {self._label('root')}", *lines, ""])

    def _label(self, name: str) -> str:
        return f"{'R' if self._is_regular else 'r'}_{self._numbers[name]}"

    def _alternatives(self, group: Group) -> str:
        return " | ".join(self._sequence(sequence) for sequence in group.alternatives)

    def _sequence(self, nodes: list[Node]) -> str:
        written = " ".join(self._node(node) for node in nodes) or '""'
        return written.replace("/ /", "") if self._is_regular else written

    def _node(self, node: Node) -> str:
        if isinstance(node, Chars):
            return f"/{node.regex}/"
        if isinstance(node, Ref):
            return self._label(node.name)
        if isinstance(node, Group):
            return f"({self._alternatives(node)})"
        if node.most == 0:
            return '""'
        return f"({self._node(node.node)}){{{node.least},{'' if node.most is None else node.most}}}"


def _is_regular(rules: dict[str, Group]) -> bool:
    """No rule reaches itself."""
    uses = {name: {ref.name for ref in _refs(group)} for name, group in rules.items()}
    done: set[str] = set()
    while len(done) < len(uses):
        more = {name for name, used in uses.items() if name not in done and used <= done}
        if not more:
            return False
        done |= more
    return True
