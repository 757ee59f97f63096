"""set-id bits go with write, truncate, fallocate and copy_file_range, and are seen gone at once"""
os.chmod(".", 0o777)
put("source", b"x" * 8192); os.chmod("source", 0o644)
changes = {
    "write": "import os; f=os.open('f',os.O_WRONLY); os.write(f,b'y')",
    "truncate": "import os; os.truncate('f', 3)",
    "fallocate": "import os; f=os.open('f',os.O_WRONLY); os.posix_fallocate(f,0,9000)",
    "copy_file_range": "import os; i=os.open('source',0); o=os.open('f',os.O_WRONLY); os.copy_file_range(i,o,4096)",
}
for name, change in changes.items():
    for mode in [0o6777, 0o2767, 0o4766]:
        put("f"); os.chown("f", 1000, 1000); os.chmod("f", mode)
        before = oct(os.stat("f").st_mode)
        subprocess.run(["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", sys.executable, "-c", change], check=True)
        print(name, before, oct(os.stat("f").st_mode))
