# Saves files as editors do, again and again: into a new file, which replaces the old one. With
# "save" prints the number of each save that is durable; with "check" what it finds: a file is one
# save, whole.
import os, sys

FILES, LINES = 8, 400

def text(name, number):
    return f"{name} {number}\n" * (LINES + number % 50)

def save(name, number, durable):
    with open(f".{name}.swp", "w") as file:
        file.write(text(name, number))
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.rename(f".{name}.swp", name)
    if durable:
        folder = os.open(".", os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

if sys.argv[1] == "save":
    number = 0
    while True:
        number += 1
        for n in range(FILES):
            save(f"synced{n}", number, True)
            save(f"plain{n}", number, False)
        print(number, flush=True)

acknowledged = int(sys.argv[2])
for n in range(FILES):
    for name in (f"synced{n}", f"plain{n}"):
        with open(name) as file:
            found = file.read()
        number = int(found.split("\n")[0].split(" ")[1])
        assert found == text(name, number), f"{name} is not one save: {len(found)} bytes"
        assert number >= acknowledged or name.startswith("plain"), (name, number, acknowledged)
