//! `uext4 mkfs -d` of an OCI image layout.
//!
//! Fault model: a layer is applied out of order; what it takes away stays, or it takes away what it
//! brings itself; an image or a part is taken that was not meant.

#[macro_use]
mod common;
#[path = "common/oci.rs"]
mod oci;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use common::{Scratch, assert_clean, at, has, is_root, run, run_fails, run_ok, system};
use oci::{Layout, Member};
use serde_json::json;
use uext4_archive::Format;

const LOWEST: &[Member<'_>] = &[
    ("./", ""),
    // Else it would have the time of each build.
    ("lost+found/", ""),
    ("bin/", ""),
    ("bin/tool", "lowest"),
    ("bin/link == bin/tool", ""),
    ("etc/", ""),
    ("etc/gone", "x"),
    ("etc/kept", "kept"),
    ("etc/opaque/", ""),
    ("etc/opaque/gone", "x"),
    ("etc/opaque/sub/", ""),
    ("etc/opaque/sub/gone", "x"),
    ("lib/", ""),
    ("lib/a", "x"),
    ("to dir", "a file"),
    ("to file/", ""),
    ("to file/gone", "x"),
    ("usr/", ""),
    ("usr/lib/", ""),
    ("usr/lib/gone", "x"),
    ("lib64 -> usr/lib", ""),
    ("merged -> usr", ""),
];

/// Whiteouts stand before and behind what they are beside; an opaque directory is not named itself;
/// a whiteout is below a symbolic link, and below a directory in the place of one.
const MIDDLE: &[Member<'_>] = &[
    ("bin/", ""),
    ("bin/tool", "middle"),
    ("etc/.wh.gone", ""),
    ("etc/opaque/before", "of the layer"),
    ("etc/opaque/.wh..wh..opq", ""),
    ("etc/opaque/sub/", ""),
    ("etc/opaque/sub/new", "of the layer"),
    ("lib/.wh.a", ""),
    ("to dir/", ""),
    ("to dir/new", "in it"),
    ("to file", "a file now"),
    ("lib64/.wh.gone", ""),
    ("lib64/through", "a link"),
    ("merged/", ""),
    ("merged/.wh.lib", ""),
    (".wh.not there", ""),
];

const HIGHEST: &[Member<'_>] =
    &[("lib/a", "again"), ("bin/third == bin/link", ""), ("etc/", ""), (".wh.to file", "")];

const WANT: &[Member<'_>] = &[
    ("/bin/tool", "middle"),
    ("/bin/link", "lowest"),
    ("/bin/third", "lowest"),
    ("/etc/kept", "kept"),
    ("/etc/opaque/before", "of the layer"),
    ("/etc/opaque/sub/new", "of the layer"),
    ("/lib/a", "again"),
    ("/to dir/new", "in it"),
    ("/usr/lib/through", "a link"),
];

fn mkfs(words: &[&str], source: &Path, image: &Path) -> Vec<OsString> {
    let words = ["mkfs", "-q"].into_iter().chain(words.iter().copied()).map(OsString::from);
    words.chain(["-d".into(), source.into(), image.into()]).collect()
}

/// A layout of one image of three layers, named `three`.
fn three_layers(scratch: &Scratch) -> Layout {
    let mut layout = Layout::new(scratch.path("layout"));
    let layers = [
        layout.layer(LOWEST, Format::Gzip),
        layout.layer(MIDDLE, Format::Plain),
        layout.layer(HIGHEST, Format::Zstd),
    ];
    let image = layout.image(&layers);
    layout.name("three", image);
    layout
}

#[test]
fn layers_give_the_tree_of_the_specification() {
    let scratch = Scratch::new();
    let (layout, image) = (three_layers(&scratch), scratch.path("image"));
    run_ok(mkfs(&[], &layout.path, &image));
    assert_clean(&image);
    for (path, want) in WANT {
        let text = run_ok(["cat".into(), at(&image, path)]);
        assert_eq!(String::from_utf8(text).unwrap(), *want, "{path}");
    }
    let found = run_ok(["find".into(), at(&image, "/"), "-type".into(), "f".into()]);
    assert_eq!(String::from_utf8(found).unwrap().lines().count(), WANT.len());
}

/// umoci unpacks the layers into a directory, which is built again.
#[test]
fn umoci_has_the_same_tree() {
    if !has("umoci") || !is_root() {
        skip!("no umoci, or not root");
    }
    let scratch = Scratch::new();
    let (image, other) = (scratch.path("image"), scratch.path("other"));
    let mut layout = Layout::new(scratch.path("layout"));
    // umoci of Debian 12 reads no zstd.
    let layers = [
        layout.layer(LOWEST, Format::Gzip),
        layout.layer(MIDDLE, Format::Plain),
        layout.layer(HIGHEST, Format::Gzip),
    ];
    let three = layout.image(&layers);
    layout.name("three", three);
    run_ok(mkfs(&[], &layout.path, &image));
    let bundle = scratch.path("bundle");
    let mut source = layout.path.clone().into_os_string();
    source.push(":three");
    let unpacked = system("umoci").args(["unpack", "--image"]).arg(source).arg(&bundle).output();
    let unpacked = unpacked.unwrap();
    assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    run_ok(mkfs(&["-E", "root_owner=0:100"], &bundle.join("rootfs"), &other));
    let difference = run(["diff".into(), image.into_os_string(), other.into_os_string()]);
    assert_eq!(String::from_utf8_lossy(&difference.stdout), "", "{difference:?}");
    assert!(difference.status.success(), "{difference:?}");
}

/// Below links that the layer lists again, replaces, or takes away. In the order of the second list
/// of each, umoci has the same.
const THROUGH_LINKS: [(&[Member<'_>], &[Member<'_>]); 5] = [
    // The same link again.
    (
        &[("usr/", ""), ("usr/lib/", ""), ("usr/lib/gone", ""), ("lib64 -> usr/lib", "")],
        &[("lib64 -> usr/lib", ""), ("lib64/.wh.gone", ""), ("usr/lib/stays", "")],
    ),
    // The second link on the way is replaced by a directory.
    (
        &[("a -> b", ""), ("b -> c", ""), ("c/", ""), ("c/stays", "")],
        &[("b/", ""), ("a/.wh.stays", ""), ("b/new stays", "")],
    ),
    // The link is taken away; what the layer has below it, it has in a directory of its own.
    (
        &[("usr/", ""), ("usr/stays", ""), ("merged -> usr", "")],
        &[(".wh.merged", ""), ("merged/.wh..wh..opq", ""), ("merged/new stays", "")],
    ),
    // Another target: the path leads where the layer says.
    (
        &[("l -> one", ""), ("one/", ""), ("one/stays", ""), ("two/", ""), ("two/gone", "")],
        &[("l -> two", ""), ("l/.wh.gone", ""), ("two/new stays", "")],
    ),
    // A link below a link, replaced under the name that leads through the first.
    (
        &[("lib -> usr/lib", ""), ("usr/lib/x -> /data", ""), ("data/stays", "")],
        &[("lib/x/", ""), ("lib/x/.wh.stays", ""), ("lib/x/new stays", "")],
    ),
];

/// The names of the files of a file system, in order.
fn files(image: &Path) -> Vec<String> {
    let found = run_ok(["find".into(), at(image, "/"), "-type".into(), "f".into()]);
    let mut names: Vec<String> =
        String::from_utf8(found).unwrap().lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn whiteouts_are_of_what_the_path_leads_to() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let is_judged = has("umoci") && is_root();
    for (number, (lower, upper)) in THROUGH_LINKS.iter().enumerate() {
        let mut layout = Layout::new(scratch.path(format!("layout {number}")));
        let lower = layout.layer(lower, Format::Gzip);
        let build = |layout: &Layout| {
            run_ok(mkfs(&[], &layout.path, &image));
            assert_clean(&image);
            let names = files(&image);
            fs::remove_file(&image).unwrap();
            names
        };
        let in_order = layout.image(&[lower.clone(), layout.layer(upper, Format::Gzip)]);
        layout.name("one", in_order);
        let names = build(&layout);
        let count = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
        assert_eq!(count("gone"), 0, "{number}: {names:?}");
        let of_upper = upper.iter().filter(|(name, _)| name.ends_with("stays")).count();
        assert!(count("stays") >= of_upper.max(1), "{number}: {names:?}");
        if is_judged {
            let mut source = layout.path.clone().into_os_string();
            source.push(":one");
            let bundle = scratch.path(format!("bundle {number}"));
            let unpacked =
                system("umoci").args(["unpack", "--image"]).arg(source).arg(&bundle).output();
            let unpacked = unpacked.unwrap();
            assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
            let judge = scratch.path("judge");
            run_ok(mkfs(&[], &bundle.join("rootfs"), &judge));
            assert_eq!(files(&judge), names, "{number}");
            fs::remove_file(judge).unwrap();
        }
        // Marks behind all else, and opaque ones before all else.
        let mut orders = [upper.to_vec(), upper.to_vec()];
        orders[0].sort_by_key(|(name, _)| name.contains(".wh."));
        orders[1].sort_by_key(|(name, _)| !name.ends_with(".wh..opq"));
        for order in orders {
            let mut layout = Layout::new(scratch.path(format!("layout {number}")));
            let image = layout.image(&[lower.clone(), layout.layer(&order, Format::Gzip)]);
            layout.name("one", image);
            assert_eq!(build(&layout), names, "{number}: {order:?}");
        }
    }
}

/// Fault model: a small manifest has a large layer unpacked for each time that it names it.
#[test]
fn a_layer_that_comes_again_is_read_once() {
    let scratch = Scratch::new();
    let (path, image) = (scratch.path("layout"), scratch.path("image"));
    let mut layout = Layout::new(path.clone());
    let mut random = 1_u64;
    let text = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'a' + (random >> 60) as u8)
    });
    let text: String = text.take(1 << 20).collect();
    let layer = layout.layer(&[("file", &text), ("kept", "x")], Format::Gzip);
    let gone = layout.layer(&[(".wh.file", ""), (".wh.kept", "")], Format::Gzip);
    let mut layers = vec![gone.clone(); 250];
    layers.extend(vec![layer.clone(); 249]);
    layers.push(gone);
    let most = layout.image(&layers);
    layers.push(layer);
    let more = layout.image(&layers);
    layout.name("more", more);
    run_fails(mkfs(&[], &path, &image), "has 501 layers, and 500 are read");
    let mut layout = Layout::new(path.clone());
    layers.remove(0);
    let last = layout.image(&layers);
    layout.name("last", last);
    layout.name("most", most);
    let build = |name: &str| {
        // The temporary file may have 64 MiB, or 128 where a unit is 1024 bytes.
        let mut command = system("sh");
        command.args(["-c", "ulimit -f 131072; exec \"$@\"", "sh", common::UEXT4]);
        let output = command.args(mkfs(&["--shrink", "--ref", name], &path, &image)).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        let names = files(&image);
        let text = (!names.is_empty()).then(|| run_ok(["cat".into(), at(&image, "/file")]));
        fs::remove_file(&image).unwrap();
        (names.len(), text)
    };
    assert_eq!(build("most"), (0, None));
    let (count, content) = build("last");
    assert!(count == 2 && content.as_deref() == Some(text.as_bytes()));
}

#[test]
fn two_builds_of_a_layout_are_the_same_to_the_byte() {
    let scratch = Scratch::new();
    let layout = three_layers(&scratch);
    let build = |name: &str| {
        let image = scratch.path(name);
        let mut command = system(common::UEXT4);
        command.args(mkfs(&["--shrink"], &layout.path, &image));
        assert!(command.env("SOURCE_DATE_EPOCH", "1700000000").status().unwrap().success());
        fs::read(image).unwrap()
    };
    assert!(build("one") == build("two"));
}

#[test]
fn the_image_that_is_meant_is_chosen() {
    let scratch = Scratch::new();
    let mut layout = Layout::new(scratch.path("layout"));
    let image = scratch.path("image");
    let make = |words: &[&str], want: &str| {
        let path = scratch.path("layout");
        match want.strip_prefix('!') {
            Some(why) => run_fails(mkfs(words, &path, &image), why),
            None => {
                run_ok(mkfs(words, &path, &image));
                assert_eq!(run_ok(["cat".into(), at(&image, "/which")]), want.as_bytes());
                fs::remove_file(&image).unwrap();
            }
        }
    };
    make(&[], "!has no image");
    let one = |text| layout.image(&[layout.layer(&[("which", text)], Format::Gzip)]);
    let (first, second, intel, arm) = (one("first"), one("second"), one("intel"), one("arm"));
    layout.name("v1", first);
    make(&[], "first");
    make(&["--ref", "v2"], "!no such image; it has v1");
    layout.name("v2", second);
    make(&[], "!several images; choose by --ref or --platform: v1 linux/amd64, v2 linux/amd64");
    make(&["--ref", "v2"], "second");
    let with = |mut of: serde_json::Value, architecture: &str, is_statement: bool| {
        of["platform"] = json!({"os": "linux", "architecture": architecture, "variant": "v8"});
        if is_statement {
            of["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
        }
        of
    };
    let manifests = [
        with(intel.clone(), "amd64", false),
        with(arm, "arm64", false),
        with(intel, "unknown", true),
    ];
    let index = layout.document("index", &json!({"schemaVersion": 2, "manifests": manifests}));
    layout.name("v3", index);
    make(&["--ref", "v3"], "!(no name) linux/amd64/v8, (no name) linux/arm64/v8");
    make(&["--ref", "v3", "--platform", "linux/arm64"], "arm");
    make(&["--ref", "v3", "--platform", "linux/arm64/v8"], "arm");
    make(&["--ref", "v3", "--platform", "linux/arm64/v7"], "!no such image");
}

/// What the descriptor does not say, the configuration does; what is no image is never meant.
#[test]
fn the_platform_is_that_of_the_image() {
    let scratch = Scratch::new();
    let mut layout = Layout::new(scratch.path("layout"));
    let (path, image) = (scratch.path("layout"), scratch.path("image"));
    let make = |words: &[&str], want: &str| {
        run_ok(mkfs(words, &path, &image));
        assert_eq!(run_ok(["cat".into(), at(&image, "/which")]), want.as_bytes());
        fs::remove_file(&image).unwrap();
    };
    let one = |text| {
        let layer = layout.layer(&[("which", text)], Format::Gzip);
        layout.image_for(text, &[layer])
    };
    let (intel, arm, risc) = (one("amd64"), one("arm64"), one("riscv64"));
    let with = |mut of: serde_json::Value, architecture: &str, os: &str| {
        of["platform"] = json!({"os": os, "architecture": architecture});
        of
    };
    // A signature as cosign stores it, and a list of contents: no images.
    let kind = "application/vnd.oci.image.config.v1+json";
    let config = layout.blob(kind, br#"{"architecture":"","os":"","config":{}}"#);
    let signed = layout.blob("application/vnd.dev.cosign.simplesigning.v1+json", b"{}");
    let signature = layout.document("manifest", &json!({"config": config, "layers": [signed]}));
    let list = layout.blob("text/spdx", b"{}");
    let mut list = layout.document("manifest", &json!({"config": list, "layers": []}));
    list["artifactType"] = json!("text/spdx");
    let manifests = json!([
        with(intel.clone(), "amd64", "linux"),
        with(arm, "arm64", "linux"),
        risc,
        signature.clone(),
        list.clone(),
        with(signature.clone(), "unknown", "unknown"),
    ]);
    let index = layout.document("index", &json!({"manifests": manifests}));
    layout.name("all", index);
    make(&["--platform", "linux/amd64"], "amd64");
    // The form of arm64 that all of its images are of.
    make(&["--platform", "linux/arm64/v8"], "arm64");
    make(&["--platform", "linux/riscv64"], "riscv64");
    let there = "(no name) linux/amd64, (no name) linux/arm64, (no name) linux/riscv64";
    run_fails(mkfs(&[], &path, &image), &format!("choose by --ref or --platform: {there}"));
    let why = format!("has no such image; it has {there}");
    run_fails(mkfs(&["--platform", "linux/s390x"], &path, &image), &why);

    let mut layout = Layout::new(scratch.path("layout"));
    layout.name("one", intel);
    make(&[], "amd64");
    make(&["--platform", "linux/amd64"], "amd64");
    let why = "has no such image; it has one linux/amd64";
    run_fails(mkfs(&["--platform", "linux/arm64"], &path, &image), why);
    // What lies beside an image in the layout leaves no choice.
    layout.name("sha256-x.sig", signature);
    layout.name("sha256-x.sbom", list);
    make(&[], "amd64");
}

#[test]
fn parts_that_are_not_those_meant_are_refused() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let mut count = 0;
    let mut refused = |spoil: &dyn Fn(&Layout, &mut serde_json::Value), why: &str| {
        count += 1;
        let mut layout = Layout::new(scratch.path(format!("layout {count}")));
        let (mut layer, _) = layout.layer(&[("a", &"text ".repeat(99))], Format::Plain);
        spoil(&layout, &mut layer);
        let manifest = layout.document("manifest", &json!({"layers": [layer]}));
        layout.name("one", manifest);
        run_fails(mkfs(&[], &layout.path, &image), why);
        assert!(!image.exists(), "{why}");
    };
    let rewrite = |layout: &Layout, layer: &serde_json::Value, change: &dyn Fn(&mut Vec<u8>)| {
        let path = layout.blob_path(layer);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(path, bytes).unwrap();
    };
    refused(&|of, layer| rewrite(of, layer, &|bytes| bytes[600] ^= 1), "its digest is another");
    // Also where the archive seems damaged, and behind its end.
    refused(&|of, layer| rewrite(of, layer, &|bytes| bytes[3] ^= 1), "its digest is another");
    let last = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() = 1;
    refused(&|of, layer| rewrite(of, layer, &last), "its digest is another");
    refused(&|of, layer| rewrite(of, layer, &|bytes| bytes.push(0)), "is named as one of");
    refused(&|of, layer| fs::remove_file(of.blob_path(layer)).unwrap(), "no such file");
    let leave = json!("sha256:../../../../../../etc/passwd");
    refused(&|_, layer| layer["digest"] = leave.clone(), "want sha256 or sha512");
    let foreign = json!("application/vnd.oci.image.layer.v1.tar+gzip+encrypted");
    refused(&|_, layer| layer["mediaType"] = foreign.clone(), "cannot be read: application/vnd");
    let bad = |of: &Layout, layer: &mut _| *layer = of.layer(&[(".wh.", "")], Format::Plain).0;
    refused(&bad, "takes away no name");
    let layout = Layout::new(scratch.path("other"));
    fs::write(layout.path.join("oci-layout"), r#"{"imageLayoutVersion": "2.0.0"}"#).unwrap();
    run_fails(mkfs(&[], &layout.path, &image), "version 2.0.0");
    fs::write(layout.path.join("oci-layout"), "[").unwrap();
    run_fails(mkfs(&[], &layout.path, &image), "cannot be read");
}
