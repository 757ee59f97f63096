"""Makes an image from a dict of files, reads a file of a cloud image, and lists that by fsspec.

    python3 images.py [CLOUD_IMAGE]

Without an image one of the same shape is made: a disk with a GPT, whose first partition is the root
file system of a machine.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec

import uext4

# An image from a dict of files.

FILES = {
    "etc/hostname": "box\n",
    "etc/motd": "Welcome.\n",
    "srv/data/numbers.bin": bytes(range(256)) * 1000,
}


def image_of(files, path, size=64 << 20, **place):
    """Makes an ext4 image that has the files; names are paths, values text or bytes."""
    uext4.mkfs(path, None if place else size, **place)
    with uext4.Volume(path, "r+", owner=(0, 0), **place) as volume:
        for name, content in files.items():
            target = volume / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.encode() if isinstance(content, str) else content)
    assert uext4.fsck(path, **{key: place[key] for key in place if key == "partition"})


# A file out of a cloud image: which partition has it?


def root_partition(image):
    """The partition that has /etc/os-release, whatever its number."""
    for partition in uext4.partitions(image):
        try:
            with uext4.Volume(image, partition=partition.number) as volume:
                if (volume / "etc" / "os-release").exists():
                    return partition.number
        except OSError:
            pass  # not ext4
    raise SystemExit(f"{image}: no partition has a root file system")


def os_name(image):
    """What an image calls its system."""
    with uext4.Volume(image, partition=root_partition(image)) as volume:
        for line in (volume / "etc" / "os-release").read_text().splitlines():
            key, _, value = line.partition("=")
            if key == "PRETTY_NAME":
                return value.strip('"')
    return "unknown"


def make_cloud_image(path):
    """A disk with a small boot partition and a root file system, as number 1."""
    with open(path, "wb") as file:
        file.truncate(96 << 20)
    parts = ["-n14:2048:+4M", "-t14:ef02", "-n1:0:0", "-c1:root"]
    subprocess.run(["sgdisk", *parts, path], check=True, stdout=subprocess.DEVNULL)
    files = {
        "usr/lib/os-release": 'NAME="Example"\nPRETTY_NAME="Example Linux 1"\n',
        "etc/hostname": "cloud\n",
        "var/log/boot.log": "up\n" * 1000,
    }
    image_of(files, path, partition=1)
    with uext4.Volume(path, "r+", partition=1) as volume:
        (volume / "etc" / "os-release").symlink_to("../usr/lib/os-release")


def main():
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "data.img")
        image_of(FILES, data)
        with uext4.Volume(data) as volume:
            for path in sorted(volume.root.rglob("*")):
                if path.is_file():
                    print(path, path.stat().st_size)

        cloud = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "cloud.img")
        if not cloud.exists():
            make_cloud_image(cloud)
        print(os_name(cloud))

        # By fsspec, so by everything that uses it.
        fs = fsspec.filesystem("uext4", image=cloud, partition=root_partition(cloud))
        for info in fs.ls("/etc"):
            print(info["type"], info["size"], info["name"])
        fs.close()
        with fsspec.open(f"uext4://etc/motd::file://{data}", "r") as file:
            print(file.read(), end="")


if __name__ == "__main__":
    main()
