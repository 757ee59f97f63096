"""editors' atomic saves, copy_file_range, and files that stay open without a name"""
for how in ["w+fsync+rename", "link+rename", "exchange"]:
    put("f", b"old"); put("f.new", how.encode())
    fd = os.open("f.new", os.O_RDWR); os.fsync(fd); os.close(fd)
    if how == "link+rename":
        os.link("f", "f~"); os.rename("f.new", "f"); os.unlink("f~")
    elif how == "exchange":
        libc.renameat2(-100, b"f", -100, b"f.new", 2); os.unlink("f.new")
    else: os.rename("f.new", "f")
    print(how, open("f", "rb").read(), sorted(os.listdir(".")))
put("a", b"0123456789" * 1000); a = os.open("a", os.O_RDONLY); b = os.open("b", os.O_RDWR | os.O_CREAT)
print(os.copy_file_range(a, b, 5000, 10, 100), os.fstat(b).st_size, os.pread(b, 12, 98))
os.unlink("b"); os.pwrite(b, b"still", 0)
print(os.fstat(b).st_nlink, os.pread(b, 5, 0))
attempt("seek data", lambda: os.lseek(b, 0, os.SEEK_DATA))
attempt("seek hole", lambda: os.lseek(b, 0, os.SEEK_HOLE))
