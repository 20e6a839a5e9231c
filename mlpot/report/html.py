"""A small builder of offline HTML pages: one file, nothing loaded from anywhere, all text escaped."""

from __future__ import annotations

import base64
import html
import math
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from mlpot.errors import UserError

# A browser that obeys this cannot fetch anything for the page, whatever a script in it tries.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


class Markup(str):
    """Text that is already HTML; any other string is escaped before it enters a page."""

    __slots__ = ()


@dataclass(frozen=True)
class Card:
    """A key figure: what it is, its value and unit, and a word of judgement.

    good: True (met), False (missed) or None (no verdict), shown by a sign as well as by colour.
    """

    label: str
    value: float | str
    unit: str = ""
    judgement: str = ""
    good: bool | None = None


def asset(name: str) -> str:
    """The text of a file that ships with this package, e.g. "assets/style.css"."""
    return files("mlpot.report").joinpath(name).read_text(encoding="utf-8")


def escape(text: object) -> Markup:
    """HTML for `text`: escaped, unless it is Markup already."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text)))


def join(parts: Iterable[object]) -> Markup:
    """The parts one after another, each escaped unless it is Markup."""
    return Markup("\n".join(escape(part) for part in parts))


def number(value: object, digits: int = 3) -> str:
    """A number with `digits` significant digits, as people write it; "–" where there is none, text as it is."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return "–" if value is None else ("yes" if value else "no")
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    real = float(value)  # type: ignore[arg-type]  # numpy scalars and the like
    if not math.isfinite(real):
        return "–" if math.isnan(real) else ("∞" if real > 0 else "−∞")
    size = math.floor(math.log10(abs(real))) if real else 0
    if size < -4 or size > 6:
        return f"{real:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("-", "−")
    # Rounding may carry into a new leading digit (9.996 -> 10.00): count the digits after it.
    rounded = round(real, digits - 1 - size)
    size = math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, digits - 1 - size)}f}".replace(",", "\u202f").replace("-", "−")


def duration(seconds: float) -> str:
    """Seconds in words: "48 s", "3 min 20 s", "2 h 5 min"."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def cards(items: Sequence[Card]) -> Markup:
    """A row of key figures."""
    verdicts = {True: ("good", "✓"), False: ("bad", "✗"), None: ("plain", "")}
    out = []
    for card in items:
        verdict, sign = verdicts[card.good]
        mark = f'<span class="sign" aria-hidden="true">{sign}</span> ' if sign else ""
        judgement = f'<div class="judgement">{mark}{escape(card.judgement)}</div>' if card.judgement else ""
        unit = f' <span class="unit">{escape(card.unit)}</span>' if card.unit else ""
        out.append(
            f'<div class="card {verdict}"><div class="label">{escape(card.label)}</div>'
            f'<div class="value">{escape(number(card.value))}{unit}</div>{judgement}</div>'
        )
    return Markup(f'<div class="cards">{"".join(out)}</div>')


def table(header: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "", words: int = 1) -> Markup:
    """A table; numbers are rounded to three digits. The first `words` columns are text, the others set flush right."""
    head = "".join(f'<th scope="col"{_flush(i, words)}>{escape(cell)}</th>' for i, cell in enumerate(header))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(number(cell))}</th>'
            if i == 0
            else f"<td{_flush(i, words)}>{escape(number(cell))}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return Markup(
        f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _flush(column: int, words: int) -> str:
    return ' class="number"' if column >= words else ""


def beside(items: Iterable[Markup]) -> Markup:
    """Tables side by side, each as wide as it needs."""
    return Markup(f'<div class="beside">{"".join(items)}</div>')


def mapping(values: Mapping[str, object]) -> Markup:
    """Names and values, nested mappings flattened to dotted names."""
    rows = "".join(
        f"<tr><th scope='row'><code>{escape(key)}</code></th><td>{escape(value)}</td></tr>"
        for key, value in _flat(values)
    )
    return Markup(f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div>')


def _flat(values: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            items = value if isinstance(value, list | tuple) else (value,)
            nested = any(isinstance(item, list | tuple | Mapping) for item in items)
            yield name, str(value) if nested else ", ".join(map(str, items))


def figure(picture: Markup, caption: str = "") -> Markup:
    """A picture (inline SVG or the like) with a caption."""
    text = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{picture}{text}</figure>")


def grid(items: Iterable[Markup], small: bool = False) -> Markup:
    """Figures side by side, as many as the window has room for."""
    return Markup(f'<div class="grid{" small" if small else ""}">{"".join(items)}</div>')


def paragraph(text: object) -> Markup:
    """A paragraph of text."""
    return Markup(f"<p>{escape(text)}</p>")


def note(text: object, warning: bool = False) -> Markup:
    """A remark set apart from the text; `warning` for what the reader should not miss."""
    kind, word = ("warning", "Warning") if warning else ("note", "Note")
    return Markup(f'<p class="{kind}" role="note"><strong>{word}.</strong> {escape(text)}</p>')


def details(summary: str, *content: object) -> Markup:
    """A part that opens on a click, and by itself in print."""
    return Markup(f"<details><summary>{escape(summary)}</summary>{join(content)}</details>")


@dataclass
class Page:
    """A page in the making: `add` what comes first, then `section`s, then `write`.

    scripts: JavaScript sources by name, put once at the page's end; a part that needs a library adds it here.
    """

    title: str
    subtitle: str = ""
    scripts: dict[str, str] = field(default_factory=dict)
    _body: list[Markup] = field(default_factory=list)
    _sections: list[tuple[str, str]] = field(default_factory=list)

    def add(self, *content: object) -> None:
        """Add content below what is there."""
        self._body.extend(escape(part) for part in content)

    def section(self, title: str, *content: object) -> None:
        """Add a titled section; it is listed at the top of the page."""
        base = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        taken = {anchor for anchor, _ in self._sections}
        anchor = next(name for name in (base, *(f"{base}-{i}" for i in range(2, 999))) if name not in taken)
        self._sections.append((anchor, title))
        self._body.append(Markup(f'<section id="{anchor}"><h2>{escape(title)}</h2>{join(content)}</section>'))

    def render(self) -> str:
        """The whole document."""
        links = "".join(f'<a href="#{anchor}">{escape(title)}</a>' for anchor, title in self._sections)
        contents = f'<nav aria-label="Contents">{links}</nav>' if len(self._sections) > 1 else ""
        subtitle = f'<p class="subtitle">{escape(self.subtitle)}</p>' if self.subtitle else ""
        scripts = "".join(f"<script>{_inert(source)}</script>\n" for source in self.scripts.values())
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{asset('assets/style.css')}</style>\n</head>\n<body>\n"
            f"<header><h1>{escape(self.title)}</h1>{subtitle}{contents}</header>\n<main>\n{join(self._body)}\n</main>\n"
            f"{scripts}</body>\n</html>\n"
        )

    def write(self, path: str | Path) -> None:
        """Write the page to `path`, whole or not at all; UserError where that cannot be done."""
        target, text = Path(path), self.render()
        temporary: str | None = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(temporary, 0o644)  # mkstemp's 0600 would keep colleagues from reading it
            os.replace(temporary, target)
        except OSError as error:
            if temporary:
                Path(temporary).unlink(missing_ok=True)
            raise UserError(f"{target}: cannot be written ({error.strerror}).") from None


def _inert(source: str) -> str:
    """JavaScript that cannot end its own script element; a source-map line would send a browser looking for a file."""
    source = re.sub(r"^//[#@] sourceMappingURL=.*$", "", source, flags=re.MULTILINE)
    return re.sub(r"</(script)", r"<\\/\1", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def packed(data: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(data).decode("ascii")
