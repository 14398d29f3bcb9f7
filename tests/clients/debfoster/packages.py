"""Writes a dpkg status file of made-up packages: PACKAGES of them, each depending on some that come before."""
import sys

PACKAGES = 2500
state = 12345


def draw(n):
    global state
    state = (state * 1103515245 + 12345) % 2**31
    return state // 65536 % n


for i in range(PACKAGES):
    print(f"Package: made-up-{i}")
    print("Status: install ok installed")
    print(f"Priority: {['optional', 'extra', 'standard'][draw(3)]}")
    print(f"Section: {['libs', 'text', 'net', 'games'][draw(4)]}")
    print(f"Version: {draw(9)}.{draw(30)}-{draw(5)}")
    if i % 10 == 3:
        print(f"Provides: made-up-virtual-{i % 70}")
    if i > 20:
        wants = {f"made-up-{draw(i)}" for _ in range(draw(6))}
        if draw(5) == 0:
            wants.add(f"made-up-virtual-{draw(70)} | made-up-{draw(i)}")
        if wants:
            print("Depends: " + ", ".join(sorted(wants)))
        if draw(3) == 0:
            print(f"Recommends: made-up-{draw(i)} (>= 1.0)")
    print(f"Description: package {i}\n made up\n")
