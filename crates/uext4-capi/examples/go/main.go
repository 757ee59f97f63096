// Makes an image, writes a file into it and reads it back: uext4 from Go.
//
//	go build -o example . && ./example disk.img
//
// Where uext4 is installed with its pkg-config file, "#cgo pkg-config: uext4" takes the place of
// the line "#cgo LDFLAGS".
package main

/*
#cgo LDFLAGS: -luext4
#include <stdlib.h>
#include <uext4.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// try makes a call and words its failure. The words are kept for each thread of the system, so the
// goroutine stays on its own until it has them.
func try(call func() C.int64_t) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result := call()
	if result < 0 {
		text := C.GoString(C.uext4_error_text())
		return 0, fmt.Errorf("%s: %w", text, syscall.Errno(-result))
	}
	return int(result), nil
}

// Volume is an open file system.
type Volume struct{ c *C.uext4_volume }

// Open opens the file system of an image.
func Open(image, options string) (*Volume, error) {
	name, words := C.CString(image), C.CString(options)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(words))
	volume := new(Volume)
	_, err := try(func() C.int64_t { return C.int64_t(C.uext4_open(name, words, &volume.c)) })
	return volume, err
}

// Close writes everything back.
func (v *Volume) Close() error {
	_, err := try(func() C.int64_t { return C.int64_t(C.uext4_close(v.c)) })
	return err
}

// File is an open file: an io.ReaderAt and io.WriterAt but for the end of the file.
type File struct{ c *C.uext4_file }

// OpenFile opens the file of that path.
func (v *Volume) OpenFile(path string, flags, mode uint32) (*File, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	file := new(File)
	_, err := try(func() C.int64_t {
		return C.int64_t(C.uext4_file_open(v.c, nil, name, C.uint32_t(flags), C.uint32_t(mode),
			&file.c))
	})
	return file, err
}

// ReadAt fills p from byte offset.
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	return try(func() C.int64_t {
		return C.uext4_file_pread(f.c, unsafe.Pointer(&p[0]), C.size_t(len(p)), C.uint64_t(offset))
	})
}

// WriteAt writes p at byte offset.
func (f *File) WriteAt(p []byte, offset int64) (int, error) {
	return try(func() C.int64_t {
		return C.uext4_file_pwrite(f.c, unsafe.Pointer(&p[0]), C.size_t(len(p)), C.uint64_t(offset))
	})
}

// Sync makes the file durable.
func (f *File) Sync() error {
	_, err := try(func() C.int64_t { return C.int64_t(C.uext4_file_sync(f.c, 0)) })
	return err
}

// Close closes the file.
func (f *File) Close() error {
	_, err := try(func() C.int64_t { return C.int64_t(C.uext4_file_close(f.c)) })
	return err
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: example IMAGE, which is not there yet")
		os.Exit(2)
	}
	image := os.Args[1]
	name := C.CString(image)
	defer C.free(unsafe.Pointer(name))
	options := C.uext4_mkfs_options{size: 64 << 20}
	must(try(func() C.int64_t {
		return C.int64_t(C.uext4_mkfs(name, &options, C.size_t(unsafe.Sizeof(options))))
	}))

	volume := must(Open(image, "noatime"))
	file := must(volume.OpenFile("/greeting", C.UEXT4_OPEN_WRITE|C.UEXT4_OPEN_CREATE, 0o644))
	must(file.WriteAt([]byte("hello from Go"), 0))
	check(file.Sync())
	check(file.Close())
	if _, err := volume.OpenFile("/none", 0, 0); err == nil {
		check(fmt.Errorf("/none is there"))
	} else {
		fmt.Println("as it should be:", err)
	}
	check(volume.Close())

	volume = must(Open(image, "ro"))
	file = must(volume.OpenFile("/greeting", 0, 0))
	content := make([]byte, 64)
	count := must(file.ReadAt(content, 0))
	fmt.Printf("%s\n", content[:count])
	check(file.Close())
	check(volume.Close())

	var report *C.uext4_report
	must(try(func() C.int64_t { return C.int64_t(C.uext4_fsck(name, 0, &report)) }))
	var counts C.uext4_counts
	must(try(func() C.int64_t {
		return C.int64_t(C.uext4_report_counts(report, &counts, C.size_t(unsafe.Sizeof(counts))))
	}))
	C.uext4_report_free(report)
	if counts.clean == 0 {
		check(fmt.Errorf("%s: not clean", image))
	}
	fmt.Println("clean")
}
