//! Processes that keep whoever reads them waiting: a FIFO stands for a page that never comes.

use std::time::Instant;

use super::*;

/// A process of that user whose command line never ends.
fn hangs(tree: &Tree, pid: u32, user: u32) {
    process(pid, 1, "python", "vllm serve /x").write(tree.folder.path());
    belongs(tree, pid, user);
    set_silent(tree, pid);
}

fn belongs(tree: &Tree, pid: u32, user: u32) {
    let status = tree.folder.path().join(format!("{pid}/status"));
    let text = fs::read_to_string(&status).unwrap();
    fs::write(&status, format!("{text}Uid:\t{user}\t0\t0\t0\n")).unwrap();
}

fn set_silent(tree: &Tree, pid: u32) {
    let line = tree.folder.path().join(format!("{pid}/cmdline"));
    fs::remove_file(&line).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&line).status().unwrap().success());
}

fn look_in_time(tree: &mut Tree) -> Vec<EngineSeen> {
    let began = Instant::now();
    let engines = tree.look().engines;
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    engines
}

#[test]
fn one_that_hangs_is_left_out_alone_and_not_waited_for_again() {
    let mut tree = Tree::new(Vec::new());
    tree.set(&vllm(10, 8001));
    hangs(&tree, 5, 1000);
    assert_eq!(names(&look_in_time(&mut tree)), [("vllm-8001", vec![10, 11, 12, 13])]);
    assert_eq!(tree.scanner.silent(), 1);
    let began = Instant::now();
    look_in_time(&mut tree);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
}

#[test]
fn hundreds_of_them_hide_no_engine_of_others() {
    let mut tree = Tree::new(Vec::new());
    tree.set(&vllm(900, 8001));
    (900..904).for_each(|pid| belongs(&tree, pid, 0));
    (1..400).for_each(|pid| hangs(&tree, pid, 1000 + pid % 100));
    assert_eq!(names(&look_in_time(&mut tree)), [("vllm-8001", vec![900, 901, 902, 903])]);
    assert_eq!(tree.scanner.silent(), 12);
}

#[test]
fn an_engine_that_no_longer_lets_itself_be_read_stays_what_it_was() {
    let mut tree = Tree::new(Vec::new());
    let engine = vllm(10, 8001);
    let before = tree.see(&engine);
    set_silent(&tree, 10);
    let now = look_in_time(&mut tree);
    assert_eq!(names(&now), names(&before));
    assert_eq!(now[0].found_by, before[0].found_by);
}
