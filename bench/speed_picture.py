"""Draws ratios to peers as bars on a logarithmic axis: docs/speed.svg, which bench/page.py writes."""
import math

WIDTH, LEFT, RIGHT, TOP, ROW = 1000, 530, 190, 62, 34
INK, BAR, GRID = "#333", "#0072b2", "#ddd"


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def label(x, y, text, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>\n'


def line(x1, y1, x2, y2, color, more=""):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>\n'


def marks_up_to(most):
    """1, 2 and 5 of every decade, and the first of them that is not below `most`."""
    marks = [value * 10**power for power in range(12) for value in (1, 2, 5)]
    return [mark for i, mark in enumerate(marks) if i < 2 or marks[i - 1] < most]


def picture(title, entries):
    """An entry is (words, ratio, spread as a part of the ratio, words behind the bar). Bars begin at 1, where both are as good."""
    spans = [(ratio * max(1 - spread / 2, 0.1), ratio * (1 + spread / 2)) for _, ratio, spread, _ in entries]
    marks = marks_up_to(max(high for _, high in spans))
    least = min(1, *(low for low, _ in spans))
    bottom = TOP + ROW * len(entries)

    def x(value):
        return LEFT + (WIDTH - RIGHT - LEFT) * math.log(value / least) / math.log(marks[-1] / least)

    out = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 50}" width="{WIDTH}" height="{bottom + 50}" '
           f'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="{INK}">\n<rect width="{WIDTH}" height="{bottom + 50}" fill="white"/>\n'
           f'<text x="20" y="30" font-size="17">{escaped(title)}</text>\n')
    for mark in marks:
        out += line(x(mark), TOP - 8, x(mark), bottom, INK if mark == 1 else GRID) + label(x(mark), bottom + 18, f"{mark}×", "middle")
    for row, ((words, ratio, _, behind), (low, high)) in enumerate(zip(entries, spans)):
        middle = TOP + ROW * row + ROW / 2 - 4
        begin, end = sorted((x(1), x(ratio)))
        out += label(LEFT - 12, middle + 4, words, "end")
        out += f'<rect x="{begin:.1f}" y="{middle - 8:.1f}" width="{end - begin:.1f}" height="16" fill="{BAR}"/>\n'
        out += line(x(low), middle, x(high), middle, INK, ' stroke-width="2"') + label(x(max(high, 1)) + 8, middle + 4, behind)
    return out + label(LEFT, bottom + 40, "ratio of medians, and its spread as a line") + "</svg>\n"
