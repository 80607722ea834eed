"""The kinds of pages that tools.make_pages prints."""

from collections.abc import Callable

from deblur.tools.pages.typesetting import Page


def book(page: Page) -> None:
    """One or two columns of paragraphs, with headings and photographs."""
    r, margin, size = page.rng, page.rng.uniform(30, 80), page.body_size()
    columns = 1 if size > 20 else r.choice([1, 1, 2])
    width = (page.side - 2 * margin - 30 * (columns - 1)) / columns
    for column in range(columns):
        x, y, bottom = margin + column * (width + 30), margin, page.side - margin
        while y < bottom - 2 * size:
            if r.random() < 0.2:
                heading = size * r.uniform(1.2, 2.2)
                y = page.paragraph(x, y, width, bottom, heading, r.randint(1, 4))
            if r.random() < 0.15 and y < bottom - 200:
                page.photo(x, y, width, 150)
                y += 150 + size
            y = page.paragraph(x, y, width, bottom, size, r.randint(15, 90))


def letter(page: Page) -> None:
    """Address, date, a few paragraphs and a name."""
    r, margin, size = page.rng, page.rng.uniform(50, 110), page.body_size()
    width, y = page.side - 2 * margin, margin
    for _ in range(r.randint(3, 5)):
        y = page.paragraph(margin, y, width, page.side, size, r.randint(2, 3)) - 0.2 * size
    page.put(margin, y + size, page.number(), page.font(size))
    y += 3 * size
    while y < page.side - margin - 6 * size:
        y = page.paragraph(margin, y, width, page.side - margin - 4 * size, size, r.randint(20, 70)) + 0.5 * size
    page.put(margin, page.side - margin - 2 * size, " ".join(r.choices(page.words, k=2)), page.font(1.3 * size))


def form(page: Page) -> None:
    """Labels, each with a value on a line or in a box."""
    r, margin, size = page.rng, page.rng.uniform(30, 70), page.body_size()
    hand = page.font(1.1 * size, r.choice(page.faces))
    y = page.paragraph(margin, margin, page.side - 2 * margin, page.side, 1.7 * size, 3) + size
    while y < page.side - margin - 2 * size:
        label, value = " ".join(r.choices(page.words, k=r.randint(1, 2))) + ":", page.word()
        x = margin + max(0.35 * page.side, page.width(label, page.font(size)) + size)
        page.put(margin, y, label, page.font(size), read=False)
        page.put(x, y, value, hand, read=False)
        page.lines.append(f"{label} {value}")
        page.rule(x, y + 1.4 * size, page.side - margin, y + 1.4 * size, width=r.choice([0.5, 1, 2]))
        y += 2.1 * size


def table(page: Page) -> None:
    """Rows and columns with rules."""
    r, margin, size = page.rng, page.rng.uniform(25, 60), min(page.body_size(), 26)
    columns, step = r.randint(3, 5), size * r.uniform(1.5, 2)
    width, font, ruled = (page.side - 2 * margin) / columns, page.font(size), r.random() < 0.7
    y = page.paragraph(margin, margin, page.side - 2 * margin, page.side, 1.6 * size, 4) + size
    while y < page.side - margin - step:
        cells = [page.word() if column == 0 else page.number() for column in range(columns)]
        cells = [cell if page.width(cell, font) < width - 8 else cell[:6] for cell in cells]
        for column, cell in enumerate(cells):
            page.put(margin + column * width + 4, y, cell, font, read=False)
            if ruled:
                page.rule(
                    margin + column * width, y - 3, margin + column * width, y + step - 3, width=r.choice([0.5, 1])
                )
        page.lines.append(" ".join(cells))
        page.rule(margin, y - 3, page.side - margin, y - 3, width=0.7)
        y += step


def receipt(page: Page) -> None:
    """A narrow strip: shop, goods with prices at the right, sum, bar code."""
    r, size = page.rng, page.rng.uniform(13, 26)
    page.face = r.choice([face for face in page.faces if face.monospaced] or page.faces)
    font, width = page.font(size), min(page.side - 40, size * r.uniform(20, 28))
    left, y, step = (page.side - width) / 2, 30.0, size * r.uniform(1.15, 1.5)
    page.box(0, 0, left - 15, page.side, colour=[r.randint(60, 180)] * 3)
    page.box(left + width + 15, 0, page.side, page.side, colour=[r.randint(60, 180)] * 3)
    for _ in range(r.randint(2, 4)):
        text = " ".join(r.choices(page.words, k=2))[: int(width / size)]
        page.put(left + (width - page.width(text, font)) / 2, y, text, font)
        y += step
    while y < page.side - 220:
        price, goods = f"{r.randint(0, 99)}.{r.randint(0, 99):02}", page.word()[:14]
        page.put(left, y, goods, font, read=False)
        page.put(left + width - page.width(price, font), y, price, font, read=False)
        page.lines.append(f"{goods} {price}")
        y += step
    page.rule(left, y + 4, left + width, y + 4)
    page.put(left, y + 12, page.number(), page.font(1.5 * size))
    page.photo(left, y + 30 + 2 * size, width, 90)


def code(page: Page) -> None:
    """Lines of a program, indented."""
    r, size = page.rng, page.rng.uniform(13, 26)
    page.face = r.choice([face for face in page.faces if face.monospaced] or page.faces)
    font, y, depth = page.font(size), 24.0, 0
    colours = [page.ink, page.ink, [min(255, value + 60) for value in page.ink]]
    while y < page.side - 2 * size:
        a, b, c = r.choices(page.words, k=3)
        text = r.choice(
            [
                f"{a} = {b}({c})",
                f"if {a}.{b}:",
                f"for {a} in {b}:",
                f"return {a} + {r.randint(0, 99)}",
                f"# {a} {b} {c}",
            ]
        )
        if page.face.covers(text):
            page.put(20 + depth * 2 * size, y, text, font, r.choice(colours))
            y += 1.35 * size
        depth = min(depth + 1, 4) if text.endswith(":") else max(0, depth - r.randint(0, 1))


def sign(page: Page) -> None:
    """A few large words in the middle of coloured panels."""
    r, y = page.rng, page.rng.uniform(20, 60)
    while y < page.side - 60:
        size = r.uniform(28, 150)
        page.face = r.choice(page.faces)
        text = r.choice(page.words)
        text = text.upper() if r.random() < 0.4 and page.face.covers(text.upper()) else text
        size = min(size, size * 0.94 * page.side / max(1.0, page.width(text, page.font(size))))
        if y + 1.4 * size > page.side:
            return
        colours = r.sample([[r.randint(180, 255) for _ in range(3)], [r.randint(0, 110) for _ in range(3)]], 2)
        page.box(0, y, page.side, y + 1.35 * size, colour=colours[0])
        page.put(
            (page.side - page.width(text, page.font(size))) / 2, y + 0.08 * size, text, page.font(size), colours[1]
        )
        y += 1.35 * size + r.uniform(0, 30)


def screen(page: Page) -> None:
    """A window with a title, entries beside it and text."""
    r, size = page.rng, page.rng.uniform(12, 22)
    bar = [min(255, max(0, value + r.choice([-60, 60]))) for value in page.paper]
    page.box(0, 0, page.side, 2.4 * size, colour=bar)
    page.put(16, 0.5 * size, " ".join(r.choices(page.words, k=3)), page.font(size))
    left, y = r.uniform(150, 300), 3.4 * size
    page.box(0, 2.4 * size, left, page.side, colour=[(a + 3 * b) // 4 for a, b in zip(bar, page.paper, strict=True)])
    while y < page.side - 2 * size:
        text = page.word()
        if page.width(text, page.font(size)) < left - 24:
            page.put(12, y, text, page.font(size))
        y += 1.9 * size
    y = 3.4 * size
    while y < page.side - 3 * size:
        y = page.paragraph(left + 20, y, page.side - left - 40, page.side - 20, size, r.randint(8, 50)) + size


PAGE_KINDS: dict[str, Callable[[Page], None]] = {
    kind.__name__: kind for kind in (book, letter, form, table, receipt, code, sign, screen)
}
