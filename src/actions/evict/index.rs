//! In which orders an engine may take files whose names show none, by the index of their model.
//!
//! The index is in the folder of the model, which its user fills. It is opened below the engine's
//! root, as model files are: links lead nowhere out of that, and only a regular file is read. The
//! size of all of a load is bounded, and only files that are known already are ordered by them.
//!
//! Engines sort the files that an index names by their names or by the numbers in these, or take
//! them as it names them. The cache of Hugging Face names files by their digests; the names are
//! those of links in `snapshots/REVISION` next to the folder `blobs` (huggingface_hub,
//! docs/source/en/guides/manage-cache.md).

use std::cmp::Ordering;
use std::io::{self, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, OFlags, ResolveFlags, fstat};

use super::Pulse;
use super::files::{FileIdentity, ModelFile, ModelFileSearch, name_below, open_named};
use crate::actions::cgroup::open_within;
use crate::parse::weight_files::{INDICES, MOST_INDEX_BYTES};
use crate::parse::weight_index;

/// Revisions of a model in its cache, of which each may have an index.
const MOST_REVISIONS: usize = 16;

/// The orders of the files that an index names, by their numbers among the known ones.
#[derive(Debug, Default)]
pub(super) struct IndexListing {
    /// As the index names them first.
    as_named: Vec<usize>,
    by_name: Vec<usize>,
    /// By name, where digits count as numbers: as vLLM 0.32 sorts them
    /// (vllm/model_executor/model_loader/weight_utils.py, `_natural_sort_key`).
    by_number: Vec<usize>,
}

impl IndexListing {
    /// From names in the order of the index, each with the number of its file.
    fn new(mut named: Vec<(String, usize)>) -> Self {
        let files = |named: &[(String, usize)]| named.iter().map(|(_, file)| *file).collect();
        let as_named = files(&named);
        named.sort();
        let by_name = files(&named);
        named.sort_by(|(one, _), (other, _)| by_numbers(one, other));
        Self { as_named, by_name, by_number: files(&named) }
    }

    pub(super) fn has(&self, file: usize) -> bool {
        self.as_named.contains(&file)
    }

    /// The file behind one in the order of the index, by name, and by number.
    pub(super) fn next(&self, file: usize) -> [Option<usize>; 3] {
        [&self.as_named, &self.by_name, &self.by_number].map(|order| {
            let place = order.iter().position(|known| *known == file)?;
            order.get(place + 1).copied()
        })
    }
}

/// Compares names, in which runs of digits count as numbers.
fn by_numbers(one: &str, other: &str) -> Ordering {
    parts(one).cmp(parts(other)).then_with(|| one.cmp(other))
}

/// The parts of a name, in turns without digits and of digits only. A number is its length without
/// leading zeros, and its digits.
fn parts(name: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let mut rest = name;
    let mut is_number = true;
    std::iter::from_fn(move || {
        is_number = !is_number;
        let differs = |byte: &u8| is_digit(byte) != is_number;
        let end = rest.as_bytes().iter().position(differs).unwrap_or(rest.len());
        if rest.is_empty() {
            return None;
        }
        let (part, behind) = rest.split_at(end);
        rest = behind;
        let digits = part.trim_start_matches('0');
        Some(if is_number { (digits.len(), digits) } else { (0, part) })
    })
}

/// The listing that has most of the known files, of the indices that belong to the folder of a
/// file. `None`: no index names two of them. `read_bytes`: what this load has read of indices.
/// While one is read, nothing is evicted.
pub(super) fn listing_of(
    file: &ModelFile,
    files: &ModelFileSearch,
    read_bytes: &mut u64,
) -> Option<IndexListing> {
    let (root, folder) = (file.root()?, file.path.parent()?);
    let folders = match folder.file_name().is_some_and(|name| name == "blobs") {
        true => revisions(root, &folder.parent()?.join("snapshots")),
        false => vec![folder.to_owned()],
    };
    let places = folders.iter().flat_map(|folder| INDICES.map(|index| (folder, index)));
    let listings =
        places.filter_map(|(folder, index)| read(root, folder, index, files, read_bytes));
    let fullest = listings.max_by_key(|listing| listing.as_named.len());
    fullest.filter(|listing| listing.as_named.len() > 1)
}

/// The folders of a model's revisions.
fn revisions(root: &OwnedFd, snapshots: &Path) -> Vec<PathBuf> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let Ok(folder) = open_within(root, snapshots, flags, resolve) else { return Vec::new() };
    let Ok(entries) = Dir::read_from(&folder) else { return Vec::new() };
    let names = entries.take(2 + MOST_REVISIONS).filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().to_str().ok()?;
        (!matches!(name, "." | "..")).then(|| snapshots.join(name))
    });
    let mut found: Vec<PathBuf> = names.collect();
    found.sort();
    found
}

/// The listing of one index; `None` where there is none that can be read.
fn read(
    root: &OwnedFd,
    folder: &Path,
    index: &str,
    files: &ModelFileSearch,
    read_bytes: &mut u64,
) -> Option<IndexListing> {
    files.pulse.beat();
    let (file, stat) = open_named(&name_below(root, &folder.join(index)).ok()?).ok()?;
    let bytes = u64::try_from(stat.st_size).ok()?;
    *read_bytes = read_bytes.checked_add(bytes).filter(|sum| *sum <= MOST_INDEX_BYTES)?;
    let bounded = std::fs::File::from(file).take(bytes);
    let text = BufReader::new(PulsingReader { text: bounded, pulse: &files.pulse });
    let names = weight_index::files(text).ok()?;
    let mut named: Vec<(String, usize)> = Vec::new();
    for name in names {
        files.pulse.beat();
        let Ok(file) = name_below(root, &folder.join(&name)) else { continue };
        let Ok(stat) = fstat(&file) else { continue };
        let known = files.index_of(FileIdentity::from(&stat));
        // Two names may be links to one file.
        let is_new = |file: &usize| named.iter().all(|(_, other)| other != file);
        named.extend(known.filter(is_new).map(|file| (name, file)));
    }
    Some(IndexListing::new(named))
}

/// Shows before each read that it goes on.
struct PulsingReader<'a, R> {
    text: R,
    pulse: &'a Pulse,
}

impl<R: Read> Read for PulsingReader<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.pulse.beat();
        self.text.read(into)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use rustix::fs::{Mode, open};

    use super::*;
    use crate::actions::evict::files::Patterns;

    fn found(root: &Path, pattern: &str) -> ModelFileSearch {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = open(root, flags, Mode::empty()).unwrap();
        let mut found = ModelFileSearch::default();
        Patterns::new(&[pattern]).open_below(root, &mut found);
        found.files.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }

    fn index(names: &[&str]) -> String {
        let entries: Vec<String> =
            names.iter().enumerate().map(|(at, name)| format!(r#""{at}": "{name}""#)).collect();
        format!(r#"{{"weight_map": {{{}}}}}"#, entries.join(","))
    }

    /// A root with files of these names in `/m`. /tmp may be a tmpfs.
    fn root(names: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        fs::create_dir(root.path().join("m")).unwrap();
        names.iter().for_each(|name| fs::write(root.path().join("m").join(name), "").unwrap());
        root
    }

    fn listing(root: &Path) -> Option<IndexListing> {
        let found = found(root, "/m/*.safetensors");
        listing_of(&found.files[0], &found, &mut 0)
    }

    const NAMES: [&str; 3] = ["audio.safetensors", "text.safetensors", "vision.safetensors"];

    #[test]
    fn an_index_orders_the_files_that_it_names_and_are_known() {
        let root = root(&NAMES);
        let place = root.path().join("m/model.safetensors.index.json");
        assert!(listing(root.path()).is_none(), "there is none");
        let named = ["vision.safetensors", "gone.safetensors", "text.safetensors"];
        fs::write(&place, index(&named)).unwrap();
        let of_two = listing(root.path()).unwrap();
        assert!(of_two.has(1) && of_two.has(2) && !of_two.has(0));
        assert_eq!(of_two.next(2), [Some(1), None, None]);
        assert_eq!(of_two.next(1), [None, Some(2), Some(2)]);
        fs::write(&place, index(&["text.safetensors"])).unwrap();
        assert!(listing(root.path()).is_none(), "of one file nothing follows");
        for broken in ["", "{", r#"{"weight_map": {"a": "../m/text.safetensors"}}"#] {
            fs::write(&place, broken).unwrap();
            assert!(listing(root.path()).is_none(), "{broken}");
        }
    }

    #[test]
    fn numbers_in_names_count_as_numbers() {
        let names = ["b10.x", "b9.x", "b09.x", "a.x"].map(str::to_owned);
        let listing = IndexListing::new(names.into_iter().zip(0..).collect());
        assert_eq!(listing.by_name, [3, 2, 0, 1]);
        assert_eq!(listing.by_number, [3, 2, 1, 0]);
        assert_eq!(by_numbers("1a", "a1"), Ordering::Less);
        assert_eq!(by_numbers("x", "x1"), Ordering::Less);
    }

    #[test]
    fn files_of_a_cache_have_the_names_of_the_links_to_them() {
        let root = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let model = root.path().join("hub/models--a--b");
        fs::create_dir_all(model.join("blobs")).unwrap();
        let digests = ["c", "a", "b"].map(|digit| digit.repeat(64));
        for revision in ["old", "new"] {
            fs::create_dir_all(model.join("snapshots").join(revision)).unwrap();
        }
        for (name, digest) in NAMES.iter().zip(&digests) {
            fs::write(model.join("blobs").join(digest), "").unwrap();
            let link = model.join("snapshots/new").join(name);
            symlink(format!("../../blobs/{digest}"), link).unwrap();
        }
        fs::write(model.join("blobs/index"), index(&NAMES)).unwrap();
        for revision in ["old", "new"] {
            let link = model.join("snapshots").join(revision).join(INDICES[0]);
            symlink("../../blobs/index", link).unwrap();
        }
        let found = found(root.path(), "/hub/models--a--b/blobs/????????????????*");
        let listing = listing_of(&found.files[0], &found, &mut 0).unwrap();
        assert_eq!(listing.as_named, [2, 0, 1], "audio, text and vision");
    }

    #[test]
    fn the_indices_of_a_load_are_bounded_together() {
        let root = root(&NAMES);
        fs::write(root.path().join("m").join(INDICES[0]), index(&NAMES)).unwrap();
        let found = found(root.path(), "/m/*.safetensors");
        let bytes = index(&NAMES).len() as u64;
        let mut read_bytes = MOST_INDEX_BYTES - 2 * bytes;
        for left in [bytes, 0] {
            assert!(listing_of(&found.files[0], &found, &mut read_bytes).is_some());
            assert_eq!(read_bytes, MOST_INDEX_BYTES - left);
        }
        assert!(listing_of(&found.files[0], &found, &mut read_bytes).is_none());
    }

    #[test]
    fn an_index_out_of_the_root_or_of_another_kind_is_not_read_and_blocks_nothing() {
        let root = root(&NAMES);
        let place = root.path().join("m/model.safetensors.index.json");
        let outside = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let secret = outside.path().join("index.json");
        fs::write(&secret, index(&NAMES)).unwrap();
        let (done, ended) = channel();
        let path = root.path().to_owned();
        thread::spawn(move || {
            symlink(&secret, &place).unwrap();
            let escapes = listing(&path).is_some();
            fs::remove_file(&place).unwrap();
            rustix::fs::mknodat(rustix::fs::CWD, &place, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
                .unwrap();
            let reads_fifo = listing(&path).is_some();
            fs::remove_file(&place).unwrap();
            let large = fs::File::create(&place).unwrap();
            large.set_len(MOST_INDEX_BYTES + 1).unwrap();
            done.send([escapes, reads_fifo, listing(&path).is_some()]).unwrap();
        });
        let read = ended.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(read, [false, false, false]);
    }
}
