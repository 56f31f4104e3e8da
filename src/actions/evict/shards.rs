//! In which order an engine takes the shards of its model.
//!
//! vLLM 0.32 sorts them by number, transformers 5.19 by the text of their names, SGLang 0.5 takes
//! them as the folder lists them (vllm/model_executor/model_loader/weight_utils.py,
//! transformers/utils/hub.py, sglang/srt/model_loader/loader.py). Numbers and text differ where
//! numbers are not padded: `model-2-of-61`, `model-10-of-61`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::files::{MOST_FILES, ModelFile};

/// So many steps from a shard to the one of the next number show that an engine goes by numbers: of
/// 12 shards in another order, fewer than one in a hundred begin so.
const TELLING_STEPS: u32 = 2;

/// A numbered shard, by the name of its file: `model-00002-of-00012.safetensors`,
/// `consolidated.01.pth`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shard<'a> {
    /// The folder, what is before the number, and what is behind it.
    set: (&'a Path, &'a str, &'a str),
    number: u64,
    path: &'a Path,
}

impl<'a> Shard<'a> {
    pub(super) fn of(path: &'a Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let is_digit = |character: char| character.is_ascii_digit();
        let begin = match name.split_once("-of-") {
            Some((head, _)) => head.trim_end_matches(is_digit).len(),
            None => name.starts_with("consolidated.").then_some("consolidated.".len())?,
        };
        let (head, numbered) = name.split_at_checked(begin)?;
        let tail = numbered.trim_start_matches(is_digit);
        let number = numbered.strip_suffix(tail)?.parse().ok()?;
        Some(Self { set: (path.parent()?, head, tail), number, path })
    }
}

/// Which of these files are shards that come before all shards of their set that are in use, by
/// number and by text. `files`: each with whether it is in use.
pub(super) fn before_those_in_use(files: &[(&Path, bool)]) -> Vec<bool> {
    let mut first: BTreeMap<_, (u64, &Path)> = BTreeMap::new();
    for shard in files.iter().filter(|(_, is_in_use)| *is_in_use).filter_map(|(p, _)| Shard::of(p))
    {
        let (number, path) = first.entry(shard.set).or_insert((shard.number, shard.path));
        (*number, *path) = ((*number).min(shard.number), (*path).min(shard.path));
    }
    let is_before = |path: &Path| {
        let shard = Shard::of(path)?;
        let (number, path) = first.get(&shard.set)?;
        Some(shard.number < *number && shard.path < *path)
    };
    files.iter().map(|(path, _)| is_before(path).unwrap_or(false)).collect()
}

/// What shards are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Number,
    Text,
}

impl By {
    /// The shard behind one.
    fn next(self, of: Shard<'_>, files: &[ModelFile]) -> Option<usize> {
        let all = files.iter().enumerate().filter_map(|(id, file)| {
            Shard::of(&file.path).filter(|shard| shard.set == of.set).map(|shard| (shard, id))
        });
        let next = match self {
            Self::Number => {
                all.filter(|(shard, _)| shard.number > of.number).min_by_key(|(s, _)| s.number)
            }
            Self::Text => all.filter(|(shard, _)| shard.path > of.path).min_by_key(|(s, _)| s.path),
        };
        next.map(|(_, id)| id)
    }
}

/// The file behind each file, as an engine has read them.
pub(super) type Steps = BTreeMap<PathBuf, PathBuf>;

/// The order in which the files of a load are begun.
#[derive(Debug, Default)]
pub(super) struct Succession {
    begun: BTreeSet<usize>,
    /// The file that was begun last; `None` where several were at once.
    last: Option<usize>,
    /// Steps of this load.
    steps: Steps,
    /// Steps of earlier loads.
    earlier: Steps,
    /// What the steps so far fit, where numbers and text differ.
    by: Option<By>,
    /// Steps to the next number, while there is no other.
    in_order: u32,
    /// Whether a step was neither by number nor by text.
    is_other: bool,
}

impl Succession {
    pub(super) fn new(earlier: Steps) -> Self {
        Self { earlier, ..Self::default() }
    }

    /// Reading goes on in these files, which are in use, since the round before.
    pub(super) fn begins(&mut self, ids: impl Iterator<Item = usize>, files: &[ModelFile]) {
        let mut new = ids.filter(|file| self.begun.insert(*file)).collect::<Vec<_>>().into_iter();
        match (new.next(), new.next()) {
            (None, _) => {}
            (Some(file), None) => {
                if let Some(last) = self.last.replace(file) {
                    self.steps(last, file, files);
                }
            }
            (Some(_), Some(_)) => self.last = None,
        }
    }

    fn steps(&mut self, from: usize, to: usize, files: &[ModelFile]) {
        let (Some(from), Some(file)) = (files.get(from), files.get(to)) else { return };
        if self.steps.len() < MOST_FILES {
            self.steps.insert(from.path.clone(), file.path.clone());
        }
        let Some(shard) = Shard::of(&from.path) else { return };
        let fits = |by: By| by.next(shard, files) == Some(to);
        match (fits(By::Number), fits(By::Text)) {
            (true, true) => {}
            (true, false) => self.by = Some(By::Number),
            (false, true) => self.by = Some(By::Text),
            (false, false) => self.is_other = true,
        }
        self.in_order += u32::from(fits(By::Number));
    }

    /// Whether the engine has shown that it takes shards by their numbers, so that it has read
    /// those with lower ones.
    pub(super) fn shows_order(&self) -> bool {
        self.in_order >= TELLING_STEPS && !self.is_other && self.by != Some(By::Text)
    }

    /// The file that the engine reads after one, where that is known.
    pub(super) fn next(&self, file: usize, files: &[ModelFile]) -> Option<usize> {
        let path = &files.get(file)?.path;
        if let Some(next) = self.earlier.get(path) {
            return files.iter().position(|file| file.path == *next);
        }
        let shard = Shard::of(path).filter(|_| !self.is_other)?;
        match self.by {
            Some(by) => by.next(shard, files),
            None => {
                let next = By::Number.next(shard, files);
                next.filter(|_| next == By::Text.next(shard, files))
            }
        }
    }

    /// The steps of this load, for the next one; none where names show the order.
    pub(super) fn take_steps(&mut self) -> Steps {
        let all = std::mem::take(&mut self.steps);
        let is_plain = all.keys().all(|path| Shard::of(path).is_some());
        if is_plain && !self.is_other && self.by.is_none() { Steps::new() } else { all }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::actions::evict::files::{Finding, Patterns};

    /// Empty files of these names in a folder.
    fn files(names: &[&str]) -> (tempfile::TempDir, Vec<ModelFile>) {
        // /tmp may be a tmpfs.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let root = open(folder.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut found = Finding::default();
        Patterns::new(&["/*"]).open_below(root, &mut found);
        assert_eq!(found.files.len(), names.len());
        let position = |file: &ModelFile| names.iter().position(|name| file.path.ends_with(name));
        found.files.sort_by_key(position);
        (folder, found.files)
    }

    fn after(begun: &[usize], files: &[ModelFile]) -> Succession {
        let mut succession = Succession::default();
        begin(&mut succession, begun, files);
        succession
    }

    fn begin(succession: &mut Succession, begun: &[usize], files: &[ModelFile]) {
        for file in begun {
            succession.begins([*file].into_iter(), files);
        }
    }

    #[test]
    fn shards_of_one_model_are_recognised_by_their_numbers() {
        let shard = |name| Shard::of(Path::new(name));
        let set = |name| shard(name).map(|shard| shard.set);
        let first = set("/m/model-00001-of-00012.safetensors");
        assert_eq!(first, Some((Path::new("/m"), "model-", "-of-00012.safetensors")));
        assert_ne!(set("/n/model-00001-of-00012.safetensors"), first);
        assert_eq!(set("/m/model-00012-of-00012.safetensors"), first);
        assert_ne!(set("/m/other-00001-of-00012.safetensors"), first);
        assert_eq!(set("/m/consolidated.03.pth"), set("/m/consolidated.00.pth"));
        assert_eq!(shard("/m/model-7-of-61.safetensors").map(|shard| shard.number), Some(7));
        let endless = format!("/m/model-{}-of-2.gguf", "9".repeat(40));
        for none in ["/m/llama-7b.gguf", "/m/best-of-5", "/m/consolidated.pth", &endless] {
            assert_eq!(set(none), None, "{none}");
        }
    }

    #[test]
    fn a_shard_is_before_those_in_use_only_where_number_and_text_agree() {
        let before = |numbers: &[&str], in_use: &[&str]| {
            let shard = |number: &&str| PathBuf::from(format!("/m/model-{number}-of-61.gguf"));
            let paths: Vec<PathBuf> = numbers.iter().map(shard).collect();
            let is_in_use = numbers.iter().map(|number| in_use.contains(number));
            let files: Vec<_> = paths.iter().map(PathBuf::as_path).zip(is_in_use).collect();
            before_those_in_use(&files)
        };
        assert_eq!(before(&["08", "09", "10", "11"], &["10", "11"]), [true, true, false, false]);
        assert_eq!(before(&["1", "2", "10"], &["2"]), [true, false, false]);
        assert_eq!(before(&["1", "2", "10"], &["10"]), [true, false, false]);
        assert_eq!(before(&["1", "2"], &[]), [false, false]);
        let other_set = [(Path::new("/m/a-1-of-2"), false), (Path::new("/m/b-2-of-2"), true)];
        assert_eq!(before_those_in_use(&other_set), [false, false]);
    }

    #[test]
    fn padded_numbers_give_the_next_shard_at_once() {
        let names = ["model-01-of-03.gguf", "model-02-of-03.gguf", "model-03-of-03.gguf"];
        let (_folder, files) = files(&names);
        let mut succession = after(&[0], &files);
        assert_eq!([0, 1, 2].map(|file| succession.next(file, &files)), [Some(1), Some(2), None]);
        assert!(!succession.shows_order());
        begin(&mut succession, &[1, 2], &files);
        assert!(succession.shows_order());
        assert_eq!(succession.take_steps(), Steps::new());
    }

    #[test]
    fn the_first_steps_show_whether_numbers_or_names_are_sorted() {
        let names = ["model-1-of-11.gguf", "model-2-of-11.gguf", "model-10-of-11.gguf"];
        let (_folder, files) = files(&names);
        assert_eq!(after(&[0], &files).next(0, &files), None, "2 or 10");
        let by_number = after(&[0, 1], &files);
        assert_eq!(by_number.next(1, &files), Some(2));
        let mut by_text = after(&[0, 2], &files);
        assert_eq!(by_text.next(2, &files), Some(1));
        begin(&mut by_text, &[1], &files);
        assert!(!by_text.shows_order());
    }

    #[test]
    fn another_order_ends_guesses_and_is_known_at_the_next_load() {
        let names = ["model-1-of-3.gguf", "model-2-of-3.gguf", "model-3-of-3.gguf", "extra.gguf"];
        let (_folder, files) = files(&names);
        let mut listed = after(&[2, 0, 1, 3], &files);
        assert!(!listed.shows_order(), "a step back");
        assert_eq!(listed.next(0, &files), None);
        let again = Succession::new(listed.take_steps());
        let next = [0, 1, 2, 3].map(|file| again.next(file, &files));
        assert_eq!(next, [Some(1), Some(3), Some(0), None]);
    }

    #[test]
    fn files_that_begin_in_one_round_show_no_order() {
        let names = ["model-1-of-3.gguf", "model-2-of-3.gguf", "model-3-of-3.gguf"];
        let (_folder, files) = files(&names);
        let mut succession = Succession::default();
        succession.begins([0, 1].into_iter(), &files);
        begin(&mut succession, &[2], &files);
        assert_eq!((succession.in_order, succession.last), (0, Some(2)));
    }
}
