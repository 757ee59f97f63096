"""new inodes get the extra fields that the superblock asks for, s_want_extra_isize (ext4/022)"""
# debugfs: ssv want_extra_isize 64
def room():
    """Bytes of a value that an inode has room for beside its extra fields."""
    for size in range(200):
        put("f", b""); os.setxattr("f", "user.a", bytes(size)); blocks = os.stat("f").st_blocks; os.unlink("f")
        if blocks > 0: return size - 1
print("room", room())
