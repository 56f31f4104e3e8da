//! In which order an engine takes the shards of its model.
//!
//! vLLM 0.32 sorts them by number, transformers 5.19 by the text of their names, SGLang 0.5 takes
//! them as the folder lists them (vllm/model_executor/model_loader/weight_utils.py,
//! transformers/utils/hub.py, sglang/srt/model_loader/loader.py). Numbers and text differ where
//! numbers are not padded: `model-2-of-61`, `model-10-of-61`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::files::{MOST_FILES, ModelFile, ModelFileSearch};
use super::index::{IndexListing, listing_of};
use crate::model::ReadOrder;

/// So many steps from a shard to the one of the next number show that an engine goes by numbers. Of
/// 12 shards in another order, fewer than one in a hundred begin so.
const TELLING_STEPS: u32 = 2;

/// Folders of one engine in which an index is searched.
const MOST_INDICES: usize = 8;

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

/// The shard behind one, by number and by text.
fn shards_behind(of: Shard<'_>, files: &[ModelFile]) -> [Option<usize>; 2] {
    let all = files.iter().enumerate().filter_map(|(id, file)| {
        Shard::of(&file.path).filter(|shard| shard.set == of.set).map(|shard| (shard, id))
    });
    let by_number = all
        .clone()
        .filter(|(shard, _)| shard.number > of.number)
        .min_by_key(|(shard, _)| shard.number);
    let by_text = all.filter(|(shard, _)| shard.path > of.path).min_by_key(|(shard, _)| shard.path);
    [by_number, by_text].map(|next| next.map(|(_, id)| id))
}

/// What files may be sorted by: numbers in their names, their names, and the index of the model.
const ORDERS: usize = 3;
const NUMBER: usize = 0;

/// The file behind each file, as an engine has read them.
type Steps = BTreeMap<PathBuf, PathBuf>;

/// The order in which the files of a load are begun.
#[derive(Debug, Default)]
pub(super) struct FileSuccession {
    begun: BTreeSet<usize>,
    /// The file that was begun last; `None` where several were at once.
    last: Option<usize>,
    /// Steps of this load.
    steps: Steps,
    /// Steps of earlier loads.
    earlier: Steps,
    /// Orders of files without a number, by the index of their model.
    listings: Vec<IndexListing>,
    /// Folders in which an index was searched.
    searched: BTreeSet<PathBuf>,
    /// Bytes of the indices that were read.
    index_bytes: u64,
    /// Which orders the steps so far do not fit, where orders differ.
    excluded: [bool; ORDERS],
    /// Steps to the next number, while there is no other.
    in_order: u32,
    /// Whether a step was in none of the orders.
    is_other: bool,
}

impl FileSuccession {
    /// `earlier`: the order in which an earlier load has read its files.
    pub(super) fn new(earlier: &[ReadOrder]) -> Self {
        Self { earlier: steps_of(earlier), ..Self::default() }
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
        let (Some(before), Some(file)) = (files.get(from), files.get(to)) else { return };
        if self.steps.len() < MOST_FILES {
            self.steps.insert(before.path.clone(), file.path.clone());
        }
        let Some(next) = self.behind(from, files) else { return };
        let fits = next.map(|next| next == Some(to));
        match fits {
            [false, false, false] => self.is_other = true,
            [true, true, true] => {}
            _ => self.excluded = fits.map(|fits| !fits),
        }
        self.in_order += u32::from(fits[NUMBER] && Shard::of(&before.path).is_some());
    }

    /// The file behind one in each order; `None`: nothing orders it.
    fn behind(&self, file: usize, files: &[ModelFile]) -> Option<[Option<usize>; ORDERS]> {
        if let Some(shard) = Shard::of(&files.get(file)?.path) {
            let [by_number, by_text] = shards_behind(shard, files);
            // What is numbered is read without an index.
            return Some([by_number, by_text, by_number]);
        }
        let listing = self.listings.iter().find(|listing| listing.has(file))?;
        let [as_named, by_name, by_number] = listing.next(file);
        Some([by_number, by_name, as_named])
    }

    /// Reads the index of a file's model, once, where names do not order it.
    pub(super) fn search_index(&mut self, file: usize, files: &ModelFileSearch) {
        let Some(file) = files.files.get(file) else { return };
        let Some(folder) = file.path.parent() else { return };
        let is_alone = || {
            let mut same = files.files.iter().filter(|known| known.path.parent() == Some(folder));
            same.nth(1).is_none()
        };
        if Shard::of(&file.path).is_some() || self.searched.contains(folder) || is_alone() {
            return;
        }
        if self.searched.len() < MOST_INDICES {
            self.searched.insert(folder.to_owned());
            self.listings.extend(listing_of(file, files, &mut self.index_bytes));
        }
    }

    /// Whether the engine has shown that it takes shards by their numbers, so that it has read
    /// those with lower ones.
    pub(super) fn shows_order(&self) -> bool {
        self.in_order >= TELLING_STEPS && !self.is_other && !self.excluded[NUMBER]
    }

    /// The file that the engine reads after one, where that is known.
    pub(super) fn next(&self, file: usize, files: &[ModelFile]) -> Option<usize> {
        let path = &files.get(file)?.path;
        if let Some(next) = self.earlier.get(path) {
            return files.iter().position(|file| file.path == *next);
        }
        if self.is_other {
            return None;
        }
        let behind = self.behind(file, files)?.into_iter().zip(self.excluded);
        let mut possible = behind.filter(|(_, is_excluded)| !is_excluded).map(|(next, _)| next);
        let first = possible.next()??;
        possible.all(|other| other == Some(first)).then_some(first)
    }

    /// The order that this load has shown, for the next ones; empty where names show it.
    pub(super) fn take_order(&mut self) -> Option<Vec<ReadOrder>> {
        let all = std::mem::take(&mut self.steps);
        let is_plain = all.keys().all(|path| Shard::of(path).is_some());
        let is_sorted = !self.is_other && self.excluded == [false; ORDERS];
        match (all.is_empty(), is_plain && is_sorted) {
            (true, _) => None,
            (false, true) => Some(Vec::new()),
            (false, false) => Some(order_of(&all)),
        }
    }
}

/// Steps as they are kept: files of one folder that follow one another.
fn order_of(steps: &Steps) -> Vec<ReadOrder> {
    let behind: BTreeSet<&PathBuf> = steps.values().collect();
    let firsts = steps.keys().filter(|path| !behind.contains(path));
    let (mut order, mut files, mut bytes) = (Vec::<ReadOrder>::new(), 0, 0);
    for first in firsts {
        let mut folder = None;
        let run = std::iter::successors(Some(first), |path| steps.get(*path));
        for (at, name) in run.filter_map(|path| Some((path.parent()?.to_str()?, name_of(path)?))) {
            let begins = folder.replace(at) != Some(at);
            files += 1;
            bytes += name.len() + if begins { at.len() } else { 0 };
            if files > ReadOrder::MOST_FILES || bytes > ReadOrder::MOST_BYTES {
                return order;
            }
            match order.last_mut().filter(|_| !begins) {
                Some(last) => last.files.push(name.into()),
                None => order.push(ReadOrder { folder: at.into(), files: vec![name.into()] }),
            }
        }
    }
    order
}

fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// The steps of an order that was kept.
fn steps_of(order: &[ReadOrder]) -> Steps {
    let of = |run: &ReadOrder| {
        let folder = Path::new(&*run.folder).to_owned();
        let paths = run.files.iter().map(move |name| folder.join(&**name));
        paths.clone().zip(paths.skip(1)).collect::<Vec<_>>()
    };
    order.iter().flat_map(of).take(MOST_FILES).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{Mode, OFlags, open};

    use super::*;
    use crate::actions::evict::files::{ModelFileSearch, Patterns};

    /// Empty files of these names in a folder.
    fn files(names: &[&str]) -> (tempfile::TempDir, Vec<ModelFile>) {
        // /tmp may be a tmpfs.
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let root = open(folder.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut found = ModelFileSearch::default();
        Patterns::new(&["/*"]).open_below(root, &mut found);
        assert_eq!(found.files.len(), names.len());
        let position = |file: &ModelFile| names.iter().position(|name| file.path.ends_with(name));
        found.files.sort_by_key(position);
        (folder, found.files)
    }

    fn after(begun: &[usize], files: &[ModelFile]) -> FileSuccession {
        let mut succession = FileSuccession::default();
        begin(&mut succession, begun, files);
        succession
    }

    fn begin(succession: &mut FileSuccession, begun: &[usize], files: &[ModelFile]) {
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
        assert_eq!(succession.take_order(), Some(Vec::new()), "names show it");
        assert_eq!(succession.take_order(), None);
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
        let order = listed.take_order().unwrap();
        assert_eq!((order.len(), order[0].files.len(), &*order[0].folder), (1, 4, "/"));
        let again = FileSuccession::new(&order);
        let next = [0, 1, 2, 3].map(|file| again.next(file, &files));
        assert_eq!(next, [Some(1), Some(3), Some(0), None]);
    }

    /// Files of a folder with an index, which names them in that order.
    fn indexed(names: &[&str], named: &[&str]) -> (tempfile::TempDir, ModelFileSearch) {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        names.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        let entry = |(at, name): (usize, &&str)| format!(r#""{at}": "{name}""#);
        let entries: Vec<String> = named.iter().enumerate().map(entry).collect();
        let index = format!(r#"{{"weight_map": {{{}}}}}"#, entries.join(","));
        fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        let root = open(folder.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut found = ModelFileSearch::default();
        Patterns::new(&["/*.safetensors"]).open_below(root, &mut found);
        found.files.sort_by(|one, other| one.path.cmp(&other.path));
        (folder, found)
    }

    #[test]
    fn an_index_gives_the_next_file_once_its_order_and_that_of_names_agree_or_one_is_shown() {
        let names = ["a.safetensors", "b.safetensors", "c.safetensors", "d.safetensors"];
        let (_folder, sorted) = indexed(&names, &names);
        let mut succession = FileSuccession::default();
        assert_eq!(succession.next(0, &sorted.files), None, "it is not read yet");
        succession.search_index(0, &sorted);
        assert_eq!(succession.next(0, &sorted.files), Some(1));
        let reordered = ["c.safetensors", "a.safetensors", "d.safetensors", "b.safetensors"];
        let (_folder, other) = indexed(&names, &reordered);
        for (begun, next) in [([2, 0], Some(3)), ([0, 1], Some(2)), ([3, 0], None)] {
            let mut succession = FileSuccession::default();
            begun.iter().for_each(|file| succession.search_index(*file, &other));
            assert_eq!(succession.next(begun[0], &other.files), None, "two orders");
            begin(&mut succession, &begun, &other.files);
            assert_eq!(succession.next(begun[1], &other.files), next, "{begun:?}");
            assert!(!succession.shows_order(), "no numbers");
            let kept = succession.take_order().unwrap();
            assert_eq!(kept[0].files.len(), 2, "it is known at the next load");
        }
    }

    #[test]
    fn an_order_is_kept_within_bounds_and_by_folder() {
        let path = |at: usize| PathBuf::from(format!("/m/{}/{at:04}.x", at / 600));
        let steps: Steps = (0..2_000).map(|at| (path(at), path(at + 1))).collect();
        let order = order_of(&steps);
        let lengths: Vec<usize> = order.iter().map(|run| run.files.len()).collect();
        assert_eq!(lengths, [600, 424]);
        let known = steps_of(&order);
        assert_eq!(known.get(&path(7)), Some(&path(8)));
        assert_eq!(known.get(&path(599)), None, "another folder");
        let long = |at: usize| PathBuf::from(format!("/{}/{at:0250}", "x".repeat(250)));
        let steps: Steps = (0..1_000).map(|at| (long(at), long(at + 1))).collect();
        let bytes: usize = order_of(&steps)[0].files.iter().map(|name| name.len()).sum();
        assert!(bytes <= ReadOrder::MOST_BYTES && bytes > ReadOrder::MOST_BYTES / 2);
    }

    #[test]
    fn files_that_begin_in_one_round_show_no_order() {
        let names = ["model-1-of-3.gguf", "model-2-of-3.gguf", "model-3-of-3.gguf"];
        let (_folder, files) = files(&names);
        let mut succession = FileSuccession::default();
        succession.begins([0, 1].into_iter(), &files);
        begin(&mut succession, &[2], &files);
        assert_eq!((succession.in_order, succession.last), (0, Some(2)));
    }
}
