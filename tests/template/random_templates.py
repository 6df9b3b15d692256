"""Compares the template engine with Jinja 2 on random templates.

usage: random_templates.py RENDER_CHATS [COUNT [FIRST]]    RENDER_CHATS: the program in build/tests

Each seed makes a template of typed expressions, filters, methods, tests, loops, macros and white space. Where both
render it, the texts must be equal, byte by byte. A template that one of them refuses is counted by the reason: the engine
is stricter about some values and more lenient about others, so only the share of what it refuses alone is bounded. Cases are
those of ASCII letters: others keep theirs in the engine.
"""
import collections
import json
import random
import re
import subprocess
import sys

import compare_jinja

MAX_REFUSED = 0.002  # of the templates that Jinja renders
VARIABLES = {
    "n": 7, "m": -3, "z": 0, "x": 2.5, "y": -0.125, "s": "Hello, World", "t": "  a b\tc \n", "u": "h\u5b57llo \u6f22\u5b57 \U0001f642",
    "e": "", "yes": True, "no": False, "nil": None, "ints": [3, 1, 2, 1], "words": ["pear", "Fig", "apple", ""],
    "d": {"k": "v", "a": [1, 2], "n": 4, "sub": {"deep": "down"}}, "rows": [{"k": "b", "n": 2}, {"k": "a", "n": 1}, {"k": "b", "n": 3}],
    "mixed": [1, "one", None, True, 2.5, [1], {"q": "'\"\\"}],
}

NUMERALS = ("12", "-2", "+5", " 7 ", "1.5", "1e3", ".5", "1.", "12a", "0x1A", "-", "", "1.5x", "e")


class Writer:
    """Draws expressions by the kind of their value. depth: how many more levels they may have."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.names = {"int": ["n", "m", "z"], "float": ["x", "y"], "text": ["s", "t", "u", "e"], "bool": ["yes", "no"],
                      "ints": ["ints"], "texts": ["words"]}
        self.macros = 0

    def one(self, kind, depth):
        leaf = depth <= 0 or self.rng.random() < 0.25
        return (getattr(self, kind + "_leaf") if leaf else getattr(self, kind))(depth - 1)

    def pick(self, *choices):
        return self.rng.choice(choices)()

    # ---- numbers ----

    def int_leaf(self, _):
        return self.rng.choice([*self.names["int"], "d.n", "d['n']", str(self.rng.randint(0, 12)), "-2", "rows[0].n", "ints[-1]"])

    def int(self, d):
        a, b = lambda: self.one("int", d), lambda: self.one("int", d)
        text, ints = lambda: self.one("text", d), lambda: self.one("ints", d)
        return self.pick(
            lambda: f"({a()} {self.rng.choice('+-*')} {b()})", lambda: f"({a()} // {self.rng.choice(['3', '-2', '5'])})",
            lambda: f"({a()} % {self.rng.choice(['3', '-2', '5'])})", lambda: f"(-{a()})", lambda: f"({a()})|abs",
            lambda: f"({text()})|length", lambda: f"({ints()})|length", lambda: f"({ints()})|sum", lambda: f"({ints()} + [1])|max",
            lambda: f"({ints()} + [1])|min", lambda: f"({text()}).find({self.quoted()})", lambda: f"({text()}).rfind({self.quoted()})",
            lambda: f"({text()}).count({self.quoted()})", lambda: f"({ints()}).count({a()})", lambda: f"({self.one('float', d)})|int",
            lambda: f"({a()} if {self.one('bool', d)} else {b()})", lambda: f"({text()})|int", lambda: f"{self.rng.choice(NUMERALS)!r}|int({self.rng.choice(['', '4'])})",
            lambda: f"rows|map(attribute='n')|sum", lambda: f"rows|sum(attribute='n')", lambda: f"({a()} ** 2)",
            lambda: f"({ints()} + [5])|first", lambda: f"({ints()} + [5])|last", lambda: f"nothing|default({a()})",
            lambda: f"d.get('none', {a()})", lambda: f"({ints()} + [6])[{self.rng.choice(['0', '-1'])}]")

    def float_leaf(self, _):
        return self.rng.choice([*self.names["float"], "0.5", "3.25", "100.0"])

    def float(self, d):
        a, b = lambda: self.one("float", d), lambda: self.one("int", d)
        return self.pick(lambda: f"({a()} {self.rng.choice('+-*')} {b()})", lambda: f"({b()} / {self.rng.choice(['4', '0.5', '-3'])})",
                         lambda: f"({a()})|round({self.rng.choice(['', '1', '2'])})", lambda: f"({a()})|abs", lambda: f"({b()})|float",
                         lambda: f"({a()} // 2)", lambda: f"({a()} % 3)", lambda: f"{self.rng.choice(NUMERALS)!r}|float({self.rng.choice(['', '0.5'])})",
                         lambda: f"({a()} ** 2)")

    # ---- texts ----

    def quoted(self):
        return self.rng.choice(["'l'", "'o'", "', '", "'b'", "'\u5b57'", "'ll'", "'World'", "' '", "'\\n'", "\"'\"", "'pear'"])

    def text_leaf(self, _):
        return self.rng.choice([*self.names["text"], "d.k", "d.sub.deep", "words[1]", "rows[1]['k']", self.quoted(), "'a\\tb\\'c\"d'",
                                "'one' ' two'"])

    def text(self, d):
        a, b, q = lambda: self.one("text", d), lambda: self.one("text", d), self.quoted
        i, texts = lambda: self.one("int", d), lambda: self.one("texts", d)
        return self.pick(
            lambda: f"({a()} + {b()})", lambda: f"({a()} ~ {self.one(self.rng.choice(['int', 'text', 'bool', 'float', 'ints', 'dict']), d)})",
            lambda: f"({a()})|{self.rng.choice(['upper', 'lower', 'title', 'capitalize', 'trim', 'string', 'reverse'])}",
            lambda: f"({a()}).{self.rng.choice(['upper', 'lower', 'capitalize', 'strip', 'lstrip', 'rstrip'])}()",
            lambda: f"({a()}).{self.rng.choice(['strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix'])}({q()})",
            lambda: f"({a()})|replace({q()}, {b()})", lambda: f"({a()}).replace({q()}, {b()})", lambda: f"({a()}).replace({q()}, '-', 1)",
            lambda: f"({a()}).split({q()})|join('|')", lambda: f"({a()}).split()|join('|')", lambda: f"({a()}).split({q()}, 1)|last",
            lambda: f"({a()}).rsplit({q()}, 1)|first", lambda: f"({a()}).splitlines()|join('/')",
            lambda: f"({a()})[{self.index()}:{self.index()}]", lambda: f"({a()})[::{self.rng.choice(['2', '-1', '3'])}]",
            lambda: f"({texts()})|join({q()})", lambda: f"{q()}.join({texts()})", lambda: f"({a()} * {self.rng.choice(['2', '0', '-1'])})",
            lambda: f"({a()} if {self.one('bool', d)} else {b()})", lambda: f"({self.one(self.rng.choice(['ints', 'texts', 'dict']), d)})|tojson",
            lambda: f"({a()})|tojson", lambda: f"({self.any(d)})|string", lambda: f"'%s-%d'|format({a()}, {i()})",
            lambda: f"'%s|%d|%s%%' % ({a()}, {i()}, {self.any(d)})",
            lambda: f"'{{}}/{{}}'.format({a()}, {i()})",
            lambda: f"({a()})|indent({self.rng.choice(['', '2', '3, true'])})", lambda: f"({a()})|default('none')",
            lambda: f"nothing|default({a()})", lambda: f"'x'|d({a()}, true)", lambda: f"({texts()} + ['w'])|first",
            lambda: f"mixed|tojson(indent={self.rng.choice(['1', '2', '4'])})", lambda: f"d|dictsort|map('first')|join",
            lambda: f"({a()})|list|join('.')", lambda: f"(rows|selectattr('n', '{self.rng.choice(['gt', 'equalto', 'lt', 'ne'])}', 2)"
            f"|map(attribute='k')|join)", lambda: f"(rows|rejectattr('k', 'in', ['a'])|map(attribute='n')|list)|string",
            lambda: f"(rows|sort(attribute='k')|map(attribute='n')|join('+'))", lambda: f"(d.items()|list)|string",
            lambda: f"(d.keys()|list|join) ~ (d.values()|list|length)", lambda: f"(d|items|list|last|first)")

    def index(self):
        return self.rng.choice(["", "1", "-2", "3", "0", "-1", "20"])

    # ---- truth ----

    def bool_leaf(self, _):
        return self.rng.choice([*self.names["bool"], "true", "False", "nil is none", "nothing is defined", "d.k is defined"])

    def bool(self, d):
        a, b, i, text = (lambda: self.one("bool", d)), (lambda: self.one("bool", d)), (lambda: self.one("int", d)), lambda: self.one("text", d)
        test = self.rng.choice(["defined", "none", "string", "number", "mapping", "iterable", "boolean", "integer", "float", "undefined",
                                "sequence"])
        return self.pick(
            lambda: f"({a()} {self.rng.choice(['and', 'or'])} {b()})", lambda: f"(not {a()})",
            lambda: f"({i()} {self.rng.choice(['<', '>', '<=', '>=', '==', '!='])} {i()})",
            lambda: f"({text()} {self.rng.choice(['<', '>', '<=', '>=', '==', '!='])} {text()})",
            lambda: f"({self.quoted()} {self.rng.choice(['in', 'not in'])} {text()})", lambda: f"({i()} in {self.one('ints', d)})",
            lambda: f"({text()} {self.rng.choice(['in', 'not in'])} {self.one('texts', d)})", lambda: f"('{self.rng.choice('kaqz')}' in d)",
            lambda: f"(({self.any(d)}) is {self.rng.choice(['', 'not '])}{test})", lambda: f"(({i()}) is {self.rng.choice(['odd', 'even', 'divisibleby(3)'])})",
            lambda: f"({text()}).{self.rng.choice(['startswith', 'endswith'])}({self.quoted()})", lambda: f"({text()}).isdigit()",
            lambda: f"(({text()}) is {self.rng.choice(['upper', 'lower'])})", lambda: f"(({i()}) is {self.rng.choice(['gt', 'lt', 'eq', 'ge', 'ne'])} {i()})",
            lambda: f"({self.any(d)} == {self.any(d)})", lambda: f"(({i()}) < {i()} <= {i()})",
            lambda: f"(({i()}) is in ({self.one('ints', d)}))", lambda: f"({text()}).startswith(('a', {self.quoted()}))")

    # ---- lists and dicts ----

    def ints_leaf(self, _):
        return self.rng.choice([*self.names["ints"], "[1, 2, 3]", "[]", "d.a", "range(4)|list", "range(5, 0, -2)|list"])

    def ints(self, d):
        a, b, i = (lambda: self.one("ints", d)), (lambda: self.one("ints", d)), lambda: self.one("int", d)
        return self.pick(
            lambda: f"[{i()}, {i()}]", lambda: f"({a()} + {b()})", lambda: f"({a()})[{self.index()}:{self.index()}]", lambda: f"({a()})[::-1]",
            lambda: f"({a()})|sort", lambda: f"({a()})|sort(reverse=true)", lambda: f"({a()})|reverse|list", lambda: f"({a()})|unique|list",
            lambda: f"({a()})|select('{self.rng.choice(['odd', 'even'])}')|list", lambda: f"({a()})|reject('gt', {i()})|list",
            lambda: f"({a()})|map('abs')|list", lambda: f"({self.one('texts', d)})|map('length')|list", lambda: f"({a()} if {self.one('bool', d)} else {b()})")

    def texts_leaf(self, _):
        return self.rng.choice([*self.names["texts"], "['a', 'b']", "s.split(', ')", "rows|map(attribute='k')|list", "d.keys()|list"])

    def texts(self, d):
        a, b, text = (lambda: self.one("texts", d)), (lambda: self.one("texts", d)), lambda: self.one("text", d)
        return self.pick(
            lambda: f"[{text()}, {text()}]", lambda: f"({a()} + {b()})", lambda: f"({a()})|map('{self.rng.choice(['upper', 'trim', 'lower'])}')|list",
            lambda: f"({a()})|sort", lambda: f"({a()})|select|list", lambda: f"({a()})[1:]", lambda: f"({text()}).split({self.quoted()})",
            lambda: f"({a()})|map('replace', {self.quoted()}, '_')|list", lambda: f"({text()})|list", lambda: f"({a()})|reject('equalto', {self.quoted()})|list",
            lambda: f"({a()})|unique|list", lambda: f"({a()})|reverse|list")

    def dict_leaf(self, _):
        return self.rng.choice(["d", "{}", "d.sub", "rows[0]"])

    def dict(self, d):
        return self.pick(lambda: f"{{'a': {self.any(d)}, {self.quoted()}: {self.any(d)}}}", lambda: f"dict(a={self.one('int', d)}, b={self.any(d)})")

    def any(self, d):
        return self.one(self.rng.choice(["int", "float", "text", "bool", "ints", "texts", "dict"]), d)

    # ---- statements ----

    def mark(self, inside, output=False):
        """A block with or without control of white space."""
        left, right = self.rng.choice(["", "", "", "-"]), self.rng.choice(["", "", "", "-"])
        return f"{{{{{left} {inside} {right}}}}}" if output else f"{{%{left} {inside} {right}%}}"

    def words(self):
        return self.rng.choice(["", " ", "a", "\n", " b\n", "  \n\n c", "{# note #}", "x {# y\n#}\n", "\t", "<|e|>"])

    def scoped(self, kind, name, body):
        """What `body` makes while `name` is a variable of this kind."""
        self.names[kind].append(name)
        out = body()
        self.names[kind].remove(name)
        return out

    def loop(self, depth):
        kind = self.rng.choice(["ints", "texts"])
        name = self.rng.choice(["i", "j", "item"])
        condition = f" if {self.scoped(kind[:-1], name, lambda: self.one('bool', 1))}" if self.rng.random() < 0.3 else ""
        counters = ["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.previtem|default('-')",
                    "loop.nextitem|default('-')", "loop.cycle('a', 'b')", "loop.depth"]
        stop = self.rng.choice(["", "", self.mark("if loop.index > 2") + self.mark(self.rng.choice(["break", "continue"])) + self.mark("endif")])
        body = self.scoped(kind[:-1], name, lambda: self.body(depth - 1))
        other = self.mark("else") + self.words() if self.rng.random() < 0.2 else ""
        return (self.mark(f"for {name} in {self.one(kind, 2)}{condition}") + stop + self.mark(self.rng.choice([name, *counters]), True) + body +
                other + self.mark("endfor"))

    def statement(self, depth):
        kind = self.rng.choice(["int", "text", "bool", "ints", "texts"])
        name = "v" + kind
        self.macros += 1
        macro = f"m{self.macros}"
        return self.pick(
            lambda: self.mark(self.any(3), True), lambda: self.mark(self.one("text", 3), True), lambda: self.mark(f"({self.one('text', 2)})|e", True),
            lambda: self.mark(f"if {self.one('bool', 2)}") + self.body(depth - 1) + self.mark(f"elif {self.one('bool', 2)}") + self.words() +
            self.mark("else") + self.body(depth - 1) + self.mark("endif"), lambda: self.loop(depth), lambda: self.loop(depth),
            lambda: self.mark(f"set {name} = {self.one(kind, 3)}") + self.scoped(kind, name, lambda: self.body(depth - 1)),
            lambda: self.mark(f"set c{self.macros}") + self.body(depth - 1) + self.mark("endset") + self.mark(f"c{self.macros}|length", True),
            lambda: self.mark(f"filter {self.rng.choice(['upper', 'trim', 'indent(2)'])}") + self.body(depth - 1) + self.mark("endfilter"),
            lambda: self.mark(f"macro {macro}(p, q={self.one('int', 1)})") + self.mark("p ~ q", True) + self.words() + self.mark("endmacro") +
            self.mark(f"{macro}({self.any(2)})", True) + self.mark(f"{macro}(q={self.any(1)}, p={self.one('int', 1)})", True),
            lambda: self.mark(f"set ns = namespace(a={self.one('int', 1)})") + self.mark(f"for w in {self.one('ints', 1)}") +
            self.mark("set ns.a = ns.a + w") + self.mark("endfor") + self.mark("ns.a", True),
            lambda: self.mark(f"for key, value in {self.one('dict', 1)}.items()") + self.mark("key ~ '=' ~ value", True) + self.mark("endfor"),
            lambda: self.mark(f"set a, b = {self.one('int', 1)}, {self.one('text', 1)}") + self.mark("b ~ a", True))

    def body(self, depth):
        if depth <= 0:
            return self.words()
        return "".join(self.words() + self.statement(depth) for _ in range(self.rng.randint(1, 3))) + self.words()


def shape(message):
    return re.sub(r"'[^']*'|\d+", "#", message.split(": ", 1)[-1])[:90]


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    env, ends, alone = compare_jinja.environment(), collections.Counter(), collections.Counter()
    with subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        for seed in range(first, first + count):
            text = Writer(seed).body(3)
            program.stdin.write(json.dumps({"template": text, "variables": VARIABLES}).encode() + b"\n")
            program.stdin.flush()
            got = json.loads(program.stdout.readline())
            try:
                want = env.from_string(text).render(**VARIABLES)
            except Exception as error:  # pylint: disable=broad-except
                ends["refused by both" if "error" in got else "refused by Jinja alone"] += 1
                if "error" not in got:
                    alone[f"Jinja alone: {type(error).__name__}: {shape(str(error))}"] += 1
                continue
            if "error" in got and "UTF-8" not in got["error"]:
                ends["refused by the engine alone"] += 1
                alone[f"the engine alone: {shape(got['error'])}"] += 1
                if "-v" in sys.argv:
                    print(f"refused: seed {seed}: {text!r}: {got['error']}")
            elif got.get("text") == want:
                ends["equal"] += 1
            else:
                ends["differ"] += 1
                if ends["differ"] <= 20:
                    print(f"FAILED: seed {seed}: {text!r}\n  Jinja  {want!r}\n  lowkey {got.get('text', got)!r}")
        program.stdin.close()
    for reason, n in alone.most_common(12):
        print(f"{n:6} {reason}")
    rendered = ends["equal"] + ends["differ"] + ends["refused by the engine alone"]
    print(f"{count} random templates:", ", ".join(f"{n} {end}" for end, n in sorted(ends.items())))
    sys.exit(1 if ends["differ"] or ends["refused by the engine alone"] > MAX_REFUSED * rendered else 0)


main()
