//! Every kind of file at the path of the switch.

use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

fn switch() -> (tempfile::TempDir, PauseFile) {
    let folder = tempfile::tempdir().unwrap();
    let file = PauseFile::new(&folder.path().join("paused"));
    (folder, file)
}

fn pause() -> Pause {
    Pause {
        author: "alice (uid 0)".to_owned(),
        comment: "a \"firmware\" update\n".to_owned(),
        since: Some(Timestamp::from_second(1_795_219_200).unwrap()),
    }
}

#[test]
fn a_written_pause_is_read_back_until_it_is_removed() {
    let (folder, file) = switch();
    assert_eq!(file.read(), None);
    file.write(&pause()).unwrap();
    assert_eq!(file.read(), Some(pause()));
    let mode = fs::metadata(file.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o644, "{mode:o}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    let again = Pause { comment: String::new(), ..pause() };
    file.write(&again).unwrap();
    assert_eq!(file.read(), Some(again));
    assert!(file.remove().unwrap());
    assert_eq!(file.read(), None);
    assert!(!file.remove().unwrap(), "there was nothing to remove");
}

#[test]
fn any_file_type_of_that_name_is_a_pause() {
    let make: [fn(&Path); 6] = [
        |path| fs::write(path, "").unwrap(),
        |path| fs::write(path, "hands off!").unwrap(),
        |path| fs::write(path, vec![0xff; 1 << 20]).unwrap(),
        |path| fs::create_dir(path).unwrap(),
        |path| symlink("/nowhere/at/all", path).unwrap(),
        |path| {
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        },
    ];
    for (number, make) in make.into_iter().enumerate() {
        let (_folder, file) = switch();
        make(file.path());
        let pause = file.read().unwrap_or_else(|| panic!("number {number} is no pause"));
        assert!(pause.author.contains("uid"), "{pause:?}");
        assert!(pause.since.is_some(), "{pause:?}");
    }
}

#[test]
fn an_inaccessible_file_is_a_pause_and_an_impossible_path_is_none() {
    let (folder, _) = switch();
    let cycle = folder.path().join("loop");
    symlink(&cycle, &cycle).unwrap();
    let pause = PauseFile::new(&cycle.join("paused")).read().unwrap();
    assert!(pause.comment.contains("cannot check"), "{pause:?}");
    let long = PauseFile::new(&folder.path().join("x".repeat(300)));
    assert!(matches!(long.check(), PauseFileState::Doubtful(_)));

    fs::write(folder.path().join("file"), "").unwrap();
    for absent in ["missing/paused", "file/paused"] {
        assert_eq!(PauseFile::new(&folder.path().join(absent)).read(), None, "{absent}");
    }
}

#[test]
fn a_change_is_detected_without_reading_the_file() {
    let (_folder, file) = switch();
    assert_eq!(file.check().stamp(), None);
    file.write(&pause()).unwrap();
    let first = file.check().stamp();
    assert!(first.is_some());
    assert_eq!(file.check().stamp(), first);
    file.write(&Pause { comment: "another".to_owned(), ..pause() }).unwrap();
    assert_ne!(file.check().stamp(), first);
}

#[test]
fn a_pause_file_without_its_folder_is_an_error() {
    let (folder, _) = switch();
    let file = PauseFile::new(&folder.path().join("missing/paused"));
    assert_eq!(file.write(&pause()).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!file.remove().unwrap());
}

proptest! {
    #[test]
    fn any_content_is_a_pause_of_bounded_length(
        content in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..200),
            "\\{\"author\": ?\".{0,40}\", ?\"since\": ?[0-9\"a-zT:-]{0,30}\\}".prop_map(String::into_bytes),
            "[\\[{]{0,200}".prop_map(String::into_bytes),
        ],
        repeat in 1_usize..100,
    ) {
        let (_folder, file) = switch();
        fs::write(file.path(), content.repeat(repeat)).unwrap();
        let pause = file.read().unwrap();
        prop_assert!(!pause.author.is_empty());
        prop_assert!(pause.author.chars().count() <= MOST_CHARS.max(4200));
        prop_assert!(pause.comment.chars().count() <= MOST_CHARS);
    }
}
