"""Computes HOMFLY polynomials of braids closed to links, by the library, and prints them."""
import ctypes

homfly = ctypes.CDLL("libhomfly.so.0").homfly_str
homfly.restype = ctypes.c_char_p


def closed_braid(strands, word):
    """The link in the library's notation: for each component its crossings, over 1 or under -1; then their signs."""
    permutation = list(range(strands))
    passes = [[] for _ in range(strands)]
    for number, generator in enumerate(word):
        i = abs(generator) - 1
        over, under = (i, i + 1) if generator > 0 else (i + 1, i)
        passes[permutation[over]].append((number, 1))
        passes[permutation[under]].append((number, -1))
        permutation[i], permutation[i + 1] = permutation[i + 1], permutation[i]
    # The strand that ends at a place goes on as the one that begins there.
    follows = {permutation[place]: place for place in range(strands)}
    components, seen = [], set()
    for first in range(strands):
        strand, component = first, []
        while strand not in seen:
            seen.add(strand)
            component += passes[strand]
            strand = follows[strand]
        if component:
            components.append(component)
    text = f"{len(components)} "
    text += " ".join(f"{len(c)} " + " ".join(f"{n} {side}" for n, side in c) for c in components)
    signs = " ".join(f"{n} {1 if g > 0 else -1}" for n, g in enumerate(word))
    return f"{text} {signs}"


braids = [(2, [1] * n) for n in range(2, 16)]
braids += [(3, [1, -2] * n) for n in range(1, 9)]
braids += [(3, [1, 2] * n) for n in range(1, 11)]
braids += [(4, [1, 2, 3] * n) for n in range(1, 9)]
braids += [(4, [1, -2, 3, 2, -1] * n) for n in range(1, 6)]
braids += [(5, [1, 2, -3, 4] * n) for n in range(1, 7)]
for strands, word in braids:
    polynomial = homfly(closed_braid(strands, word).encode()).decode()
    print(strands, len(word), " ".join(polynomial.split()))
