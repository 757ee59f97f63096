#!/usr/bin/env python3.8
"""Writes tables.rs: `python3.8 generate.py > tables.rs`.

ext4 folds names as Unicode 12.1 has it, whatever has been assigned since. Python 3.8 is the version
that has this Unicode; the ignorable code points, which Python does not know, are those of
DerivedCoreProperties-12.1.0.txt (Default_Ignorable_Code_Point).
"""

import unicodedata

assert unicodedata.unidata_version == "12.1.0"

IGNORED = [
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5),
    (0x180B, 0x180E), (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
]
HANGUL = range(0xAC00, 0xAC00 + 11172)
ALL = [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def is_ignored(c):
    return any(first <= c <= last for first, last in IGNORED)


def fold(c):
    """Folding and canonical decomposition, repeated until neither changes anything."""
    text = chr(c)
    while True:
        parts = [unicodedata.normalize("NFD", x.casefold()) for x in text if not is_ignored(ord(x))]
        if "".join(parts) == text:
            return text
        text = "".join(parts)


def mappings():
    folds = ((c, fold(c)) for c in ALL if not is_ignored(c) and c not in HANGUL)
    return {c: to for c, to in folds if to != chr(c)}


def shifts(mapped):
    """Rows (first, last, step, target) of code points that move by the same distance, four or more."""
    singles = {c: ord(to) for c, to in mapped.items() if len(to) == 1}
    done, rows = set(), []

    def length(c, step):
        count = 0
        while singles.get(c + count * step) == singles[c] + count * step:
            if c + count * step in done:
                break
            count += 1
        return count

    for c in sorted(singles):
        if c in done:
            continue
        step = 1 if length(c, 1) >= 4 else 2
        count = length(c, step)
        if count < 4:
            continue
        done.update(range(c, c + count * step, step))
        rows.append((c, c + (count - 1) * step, step, singles[c]))
    assert all(a[1] < b[0] for a, b in zip(rows, rows[1:]))
    return rows, done


def strings(mapped, done):
    """Rows (first, target) of single code points, one row for each."""
    return [(c, ord(to)) for c, to in sorted(mapped.items()) if len(to) == 1 and c not in done]


def classes():
    rows = []
    for c in ALL:
        of = unicodedata.combining(chr(c))
        if of and rows and rows[-1][1] == c - 1 and rows[-1][2] == of:
            rows[-1][1] = c
        elif of:
            rows.append([c, c, of])
    return rows


def escaped(text):
    return "".join(x if x.isascii() else "\\u{%x}" % ord(x) for x in text)


def table(doc, name, kind, rows):
    print(f"\n/// {doc}\n#[rustfmt::skip]\npub(super) static {name}: &[{kind}] = &[")
    line = "   "
    for row in rows:
        if len(line) + len(row) + 2 > 100:
            print(line)
            line = "   "
        line += f" {row},"
    print(f"{line}\n];")


def main():
    mapped = mappings()
    moved, done = shifts(mapped)
    print("//! Unicode 12.1: what code points outside of ASCII fold to, and their order. Written by")
    print("//! generate.py. Every table ascends.")
    table("Code points from the first to the last that are ignored.", "IGNORED", "(u32, u32)",
          [f"({a:#x}, {b:#x})" for a, b in IGNORED])
    table("First and last code point, their distance, what the first one folds to; the others "
          "move\n/// as far.", "SHIFTED", "(u32, u32, u32, u32)",
          [f"({a:#x}, {b:#x}, {s}, {t:#x})" for a, b, s, t in moved])
    table("A code point and the one it folds to.", "SINGLE", "(u32, u32)",
          [f"({c:#x}, {t:#x})" for c, t in strings(mapped, done)])
    table("A code point and the text it folds to.", "SEVERAL", "(u32, &str)",
          [f"({c:#x}, \"{escaped(t)}\")" for c, t in sorted(mapped.items()) if len(t) > 1])
    table("First and last code point of a canonical combining class.", "CLASSES", "(u32, u32, u8)",
          [f"({a:#x}, {b:#x}, {of})" for a, b, of in classes()])


main()
