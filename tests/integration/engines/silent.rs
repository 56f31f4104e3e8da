//! Processes whose `/proc` files block the reader: a FIFO in place of a file.

use std::time::Instant;

use super::*;

/// Adds a process of that user whose command line blocks.
fn add_hanging(tree: &Tree, pid: u32, user: u32) {
    process(pid, 1, "python", "vllm serve /x").write(tree.folder.path());
    set_user(tree, pid, user);
    block_cmdline(tree, pid);
}

fn set_user(tree: &Tree, pid: u32, user: u32) {
    let status = tree.folder.path().join(format!("{pid}/status"));
    let text = fs::read_to_string(&status).unwrap();
    fs::write(&status, text.replacen("Uid:\t0", &format!("Uid:\t{user}"), 1)).unwrap();
}

fn block_cmdline(tree: &Tree, pid: u32) {
    let line = tree.folder.path().join(format!("{pid}/cmdline"));
    fs::remove_file(&line).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&line).status().unwrap().success());
}

fn scan_in_time(tree: &mut Tree) -> Vec<EngineSeen> {
    let began = Instant::now();
    let engines = tree.scan().engines;
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    engines
}

#[test]
fn a_process_that_hangs_is_skipped_alone_and_not_waited_for_again() {
    let mut tree = Tree::new(Vec::new());
    tree.set(&vllm(10, 8001));
    add_hanging(&tree, 5, 1000);
    assert_eq!(names(&scan_in_time(&mut tree)), [("vllm-8001", vec![10, 11, 12, 13])]);
    assert_eq!(tree.scanner.silent(), 1);
    let began = Instant::now();
    scan_in_time(&mut tree);
    assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
}

#[test]
fn hundreds_of_hanging_processes_hide_no_engine_of_other_users() {
    let mut tree = Tree::new(Vec::new());
    tree.set(&vllm(900, 8001));
    (900..904).for_each(|pid| set_user(&tree, pid, 0));
    (1..400).for_each(|pid| add_hanging(&tree, pid, 1000 + pid % 100));
    assert_eq!(names(&scan_in_time(&mut tree)), [("vllm-8001", vec![900, 901, 902, 903])]);
    assert_eq!(tree.scanner.silent(), 12);
}

#[test]
fn an_engine_that_becomes_unreadable_keeps_its_identity() {
    let mut tree = Tree::new(Vec::new());
    let engine = vllm(10, 8001);
    let before = tree.scan_of(&engine);
    block_cmdline(&tree, 10);
    let now = scan_in_time(&mut tree);
    assert_eq!(names(&now), names(&before));
    assert_eq!(now[0].found_by, before[0].found_by);
}
