//! Seeded damage, judged by the checker and by e2fsck -fn.
//!
//! Fault model: see `uext4_sim::structure_damage`; shapes of images: `uext4_sim::shape`. Where
//! verdicts differ there is a reason in `uext4_sim::fsck_diff::Reason`. `UEXT4_FSCK_CASES` sets how
//! many cases there are; `cargo xtask fsck-diff` runs 1,000. Needs mke2fs and e2fsck; says so and
//! passes where they are missing.

use uext4_fsck::{Options, check};
use uext4_sim::fsck_diff::Cases;
use uext4_sim::oracle::{Oracle, expect_clean};

const CASES: u64 = 150;

fn cases() -> Option<Cases> {
    if uext4_sim::oracle::program("mke2fs").is_none() || uext4_sim::oracle::e2fsck().is_none() {
        println!("skipped: mke2fs and e2fsck are not installed");
        return None;
    }
    Some(Cases::new().expect("images"))
}

#[test]
fn verdicts_on_damaged_images_are_those_of_e2fsck() {
    let Some(cases) = cases() else { return };
    let count = std::env::var("UEXT4_FSCK_CASES").ok().and_then(|text| text.parse().ok());
    let (mut differences, mut dirty) = (Vec::new(), 0);
    let count = count.unwrap_or(CASES);
    for case in 1..=count {
        let found = cases.compare(case).expect("e2fsck");
        dirty += u64::from(!found.theirs);
        if !found.is_fine() {
            println!("{}\nours: {}{}", found.what, found.our_words, found.their_words);
            differences.push(case);
        }
    }
    println!("{count} cases, {dirty} not clean");
    assert!(differences.is_empty(), "cargo xtask fsck-diff --cases 1 --seed {differences:?}");
    assert!(dirty > count / 4, "only {dirty} cases do harm");
}

#[test]
fn sound_images_have_no_finding_with_any_number_of_threads() {
    let Some(cases) = cases() else { return };
    let oracle = Oracle::new().expect("e2fsck");
    for (shape, image) in cases.bases() {
        let reports = [0, 1, 2, 5].map(|threads| {
            let options = Options { threads, ..Options::default() };
            check(image, &options, &mut ()).expect(shape)
        });
        assert!(reports[0].findings.is_empty(), "{shape}: {:#?}", reports[0].findings);
        assert!(reports.iter().all(|report| *report == reports[0]), "{shape}");
        let path = oracle.put(image, "image").expect("image");
        expect_clean(&path).unwrap_or_else(|why| panic!("{shape}: {why}"));
        assert!(reports[0].counts.files > 60 && reports[0].counts.directories > 20);
    }
}
