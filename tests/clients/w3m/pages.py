"""Writes the pages that w3m renders into the folder that is named. They are the same on every run."""

import pathlib
import sys

WORDS = """block granule buffer owner frontier refill retire sideline sequence transaction cycle stop pause mutator marker
door heap kind pacing stack root barrier card region nursery promotion forwarding finalizer""".split()


class Draw:
    """A small generator of our own, so that the pages do not depend on Python's."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % limit

    def words(self, count):
        return " ".join(WORDS[self.below(len(WORDS))] for _ in range(count))


def tables(draw):
    """Tables within tables, with cells over several rows and columns."""
    for number in range(240):
        inner = "".join(
            f"<tr><td rowspan={1 + draw.below(2)}>{draw.words(3)}<td align=right>{draw.below(10**6)}<td>{draw.words(2)}"
            for _ in range(8)
        )
        rows = "".join(
            f"<tr><th>{draw.words(1)}<td colspan={1 + draw.below(3)}>{draw.words(5)}<td>{row}<td><b>{draw.words(2)}</b>"
            for row in range(12)
        )
        yield f"<h2>{number}</h2><table border=1 width={60 + draw.below(40)}%>{rows}"
        yield f"<tr><td><table border>{inner}</table><td>{draw.words(9)}</table>"


def lists(draw):
    """Lists in lists, definitions, quotations."""
    for number in range(400):
        yield f"<h3><a name=s{number}>{draw.words(4)}</a></h3><ol>"
        for _ in range(6):
            items = "".join(f"<li><a href='p{draw.below(99)}.html'>{draw.words(3)}</a>" for _ in range(5))
            yield f"<li>{draw.words(12)}<ul>{items}</ul>"
        yield f"</ol><dl><dt>{draw.words(2)}<dd>{draw.words(30)}</dl><blockquote>{draw.words(25)}</blockquote>"


def text(draw):
    """Paragraphs with markup and entities, preformatted text, and lines of many thousand characters."""
    for number in range(450):
        marked = f"<i>{draw.words(4)}</i> &lt;{draw.words(2)}&gt; &amp; &eacute;&szlig;&#955; <tt>{draw.words(3)}</tt>"
        yield f"<p align={('left', 'right', 'center')[number % 3]}>{draw.words(60)} {marked} {draw.words(80)}</p>"
        if number % 10 == 0:
            yield "<pre>" + "\n".join(f"{line:5} {draw.words(8)}" for line in range(60)) + "</pre><hr>"
    yield "<p>" + draw.words(12000) + "<p>" + "x" * 50000


def forms(draw):
    """Forms with fields, choices and text areas."""
    for number in range(240):
        yield f"<form action=a{number}><input name=n value='{draw.words(2)}'><input type=checkbox checked>"
        yield "<select>" + "".join(f"<option>{draw.words(2)}" for _ in range(12)) + "</select>"
        yield f"<textarea rows=4 cols=30>{draw.words(20)}</textarea><input type=submit value='{draw.words(1)}'></form>"


def main():
    folder = pathlib.Path(sys.argv[1])
    for seed, page in enumerate([tables, lists, text, forms]):
        body = "\n".join(page(Draw(seed)))
        html = f"<html><head><title>{page.__name__}</title></head><body>\n{body}\n</body></html>\n"
        (folder / f"{page.__name__}.html").write_text(html, encoding="utf-8")


main()
