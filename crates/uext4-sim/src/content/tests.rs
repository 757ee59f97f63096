use super::*;
use crate::model::Rules;

const ID: Id = 0x10_0007;

fn write(offset: u64, len: u64, generation: u32) -> Operation {
    Operation::Write { id: ID, offset, len, generation, append: false, direct: false }
}

fn apply(content: &mut Content, operation: &Operation) -> Effect {
    let effect = Effect::of(operation, content.size).unwrap();
    content.apply(&effect);
    effect
}

/// The bytes that `content` stands for, with a hole where nothing was written.
fn bytes_of(content: &Content) -> FileBytes {
    let mut bytes = vec![0; content.size as usize];
    for (at, byte) in bytes.iter_mut().enumerate() {
        let generation = content.at(at as u64);
        if generation > 0 {
            *byte = pattern(ID, generation)[at & 7];
        }
    }
    FileBytes { size: content.size, data: vec![(0, bytes)] }
}

#[test]
fn runs_are_cut_and_replaced() {
    let mut content = Content::default();
    apply(&mut content, &write(10, 30, 1));
    apply(&mut content, &write(20, 5, 2));
    apply(&mut content, &Operation::Punch { id: ID, offset: 35, len: 100 });
    apply(&mut content, &write(50, 10, 3));
    apply(&mut content, &Operation::Resize { id: ID, size: 55 });
    let at: Vec<u32> = [9, 10, 19, 20, 24, 25, 34, 35, 50, 54, 55].map(|b| content.at(b)).into();
    assert_eq!(at, [0, 1, 1, 2, 2, 1, 1, 0, 3, 3, 0]);
    assert_eq!(content.size, 55);
}

#[test]
fn the_synced_state_and_any_later_one_pass() {
    let mut content = Content::default();
    apply(&mut content, &write(0, 100, 1));
    let synced = content.clone();
    let later = [
        apply(&mut content, &write(40, 20, 2)),
        apply(&mut content, &Operation::Resize { id: ID, size: 50 }),
        apply(&mut content, &write(70, 10, 3)),
    ];
    check(ID, &synced, &later, &bytes_of(&synced), Rules::EXACT).unwrap();
    check(ID, &synced, &later, &bytes_of(&content), Rules::EXACT).unwrap();
    // A mixture: the new bytes without the truncation.
    let mut mixed = synced.clone();
    apply(&mut mixed, &write(70, 10, 3));
    check(ID, &synced, &later, &bytes_of(&mixed), Rules::EXACT).unwrap();
}

#[test]
fn what_is_behind_a_shift_moves_with_it_or_not_at_all() {
    let mut content = Content::default();
    apply(&mut content, &write(0, 12_000, 1));
    apply(&mut content, &write(4096, 4096, 2));
    let synced = content.clone();
    let collapse = apply(&mut content, &Operation::Collapse { id: ID, offset: 0, len: 4096 });
    assert_eq!((content.size, content.at(0), content.at(4096)), (7904, 2, 1));
    let shifted = content.clone();
    let over = apply(&mut content, &write(100, 50, 3));
    let insert = apply(&mut content, &Operation::Insert { id: ID, offset: 4096, len: 4096 });
    assert_eq!((content.size, content.at(4096), content.at(8192)), (12_000, 0, 1));
    let later = [collapse, over, insert];
    let verdict = |found: &FileBytes| check(ID, &synced, &later, found, Rules::EXACT);
    for moment in [&synced, &shifted, &content] {
        verdict(&bytes_of(moment)).unwrap();
    }
    // The shift was lost, and the write after it was not; the punch before it was not.
    let mut moved = synced.clone();
    apply(&mut moved, &write(4196, 50, 3));
    verdict(&bytes_of(&moved)).unwrap();
    apply(&mut moved, &Operation::Punch { id: ID, offset: 0, len: 4096 });
    verdict(&bytes_of(&moved)).unwrap();
    // Half of a shift, and one with the size of another moment.
    apply(&mut moved, &Operation::Punch { id: ID, offset: 4096, len: 100 });
    verdict(&bytes_of(&moved)).unwrap_err();
    let mut half = shifted.clone();
    half.size = 12_000;
    verdict(&bytes_of(&half)).unwrap_err();
    let mut old_place = shifted;
    apply(&mut old_place, &write(4196, 50, 3));
    verdict(&bytes_of(&old_place)).unwrap_err();
}

#[test]
fn lost_and_foreign_bytes_are_found() {
    let mut content = Content::default();
    apply(&mut content, &write(0, 100, 1));
    let mut found = bytes_of(&content);
    found.data[0].1[50] = 0;
    let error = check(ID, &content, &[], &found, Rules::EXACT).unwrap_err();
    assert!(error.starts_with("byte 50 (and 0 more"), "{error}");
    found = FileBytes { size: 100, data: Vec::new() };
    assert!(check(ID, &content, &[], &found, Rules::EXACT).unwrap_err().contains("are a hole"));
    found = FileBytes { size: 99, data: Vec::new() };
    assert!(check(ID, &content, &[], &found, Rules::EXACT).unwrap_err().starts_with("size 99"));
    // Bytes of a generation that was overwritten before the sync.
    let stale = bytes_of(&content);
    apply(&mut content, &write(10, 10, 2));
    assert!(check(ID, &content, &[], &stale, Rules::EXACT).unwrap_err().starts_with("byte 10 "));
    // What has been written since the sync may be anything if data may be late, and no more.
    let late = Rules { data_may_be_late: true, ..Rules::EXACT };
    let synced = content.clone();
    let later = [apply(&mut content, &write(20, 10, 3))];
    found = bytes_of(&synced);
    found.data[0].1[25] = 0xa5;
    check(ID, &synced, &later, &found, Rules::EXACT).unwrap_err();
    check(ID, &synced, &later, &found, late).unwrap();
    found.data[0].1[30] = 0xa5; // synced
    check(ID, &synced, &later, &found, late).unwrap_err();
}

#[test]
fn journaled_content_is_of_one_moment() {
    let mut content = Content::default();
    apply(&mut content, &write(0, 9000, 1));
    let synced = content.clone();
    let small = apply(&mut content, &write(100, 2000, 2));
    let after_small = content.clone();
    let large = apply(&mut content, &write(0, 8192, 3));
    let later = [small, large];
    let passes =
        |content: &Content| check_moment(ID, &synced, &later, &bytes_of(content), 4096).is_ok();
    assert!(passes(&synced) && passes(&after_small) && passes(&content));
    // The large write up to a block.
    let mut part = after_small.clone();
    apply(&mut part, &write(0, 4096, 3));
    assert!(passes(&part));
    // Half of the small one, and the large one without it.
    let mut torn = synced.clone();
    apply(&mut torn, &write(100, 924, 2));
    assert!(!passes(&torn));
    let mut reordered = synced.clone();
    apply(&mut reordered, &write(4096, 4096, 3));
    assert!(!passes(&reordered));
    check(ID, &synced, &later, &bytes_of(&torn), Rules::EXACT).unwrap();
    // Half of it, if it was two requests of a queue.
    let mut later = later;
    later[0].size_between = Some(synced.size);
    check_moment(ID, &synced, &later, &bytes_of(&torn), 4096).unwrap();
    check_moment(ID, &synced, &later, &bytes_of(&reordered), 4096).unwrap_err();
}

#[test]
fn parts_tell_holes_from_data() {
    let found = FileBytes { size: 40, data: vec![(10, vec![1; 10]), (30, vec![2; 5])] };
    let parts: Vec<_> =
        found.parts(5..33).into_iter().map(|(r, b)| (r, b.map(<[u8]>::len))).collect();
    assert_eq!(parts, [(5..10, None), (10..20, Some(10)), (20..30, None), (30..33, Some(3))]);
}
