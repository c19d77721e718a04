//! Settings that are files in a folder of the test's own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Kind, Outcome, Undo, write_or_instead};

const KIND: Kind = Kind {
    what: "things",
    key: "test.state-file",
    files: &["a", "b"],
    shown: |_, value| value.to_lowercase(),
    made_anew: true,
    instead_of_empty: || Some("everything".to_owned()),
};

struct Folder {
    root: PathBuf,
    _removed_on_drop: TempDir,
}

impl Folder {
    /// With settings `a` and `b`, and a folder for the record.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(root.join("run")).unwrap();
        for name in ["a", "b"] {
            fs::write(root.join(name), "before\n").unwrap();
        }
        Self { root, _removed_on_drop: folder }
    }

    fn state(&self) -> PathBuf {
        self.root.join("run/state")
    }

    fn lock(&self) -> std::io::Result<Option<Undo>> {
        Undo::lock(KIND, &self.state(), &self.root)
    }

    fn undo(&self) -> Undo {
        self.lock().unwrap().unwrap()
    }

    fn words(&self, word: &str) -> [(PathBuf, String); 2] {
        ["a", "b"].map(|name| (self.root.join(name), word.to_owned()))
    }

    fn read(&self) -> [String; 2] {
        ["a", "b"].map(|name| fs::read_to_string(self.root.join(name)).unwrap().trim().to_owned())
    }

    /// Ends an IOKernel as SIGKILL does: nothing is put back.
    fn kill(undo: Undo) {
        let mut undo = undo;
        undo.dirty = false;
    }

    /// Makes `a` unreadable and unwritable for root, too.
    fn block(&self) {
        let file = self.root.join("a");
        fs::rename(&file, self.root.join("kept")).and_then(|()| fs::create_dir(&file)).unwrap();
    }

    /// Makes it the setting that it was.
    fn unblock(&self) {
        let file = self.root.join("a");
        fs::remove_dir(&file).and_then(|()| fs::rename(self.root.join("kept"), &file)).unwrap();
    }

    /// Removes `a` and makes it again, with this value and another number.
    fn make_anew(&self, value: &str) {
        // Both are there for a moment, so that the number is not given again.
        let new = self.root.join("new");
        fs::write(&new, value).and_then(|()| fs::rename(&new, self.root.join("a"))).unwrap();
    }
}

fn set(undo: &mut Undo, words: &[(PathBuf, String)]) {
    assert!(undo.set(words).unwrap().is_empty());
}

fn is_there(file: &Path, suffix: &str) -> bool {
    super::beside(file, suffix).exists()
}

#[test]
fn what_a_killed_iokernel_has_set_is_put_back_and_the_record_is_removed() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    assert!(!folder.state().exists(), "nothing is changed");
    set(&mut undo, &folder.words("one"));
    set(&mut undo, &folder.words("two"));
    assert_eq!(
        (folder.read(), is_there(&folder.state(), ".new")),
        (["two", "two"].map(str::to_owned), false)
    );
    Folder::kill(undo);
    fs::write(folder.root.join("b"), "mine").unwrap();
    let next = folder.undo();
    let changed = vec![folder.root.join("b")];
    assert_eq!(next.recovered, Outcome { put_back: 1, changed, failed: Vec::new() });
    assert_eq!((folder.read(), folder.state().exists()), (["before", "mine"].map(str::to_owned), false));
}

#[test]
fn a_death_while_the_record_is_written_leaves_the_former_one() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    set(&mut undo, &folder.words("one"));
    Folder::kill(undo);
    fs::write(super::beside(&folder.state(), ".new"), "[{\"file\":").unwrap();
    let mut next = folder.undo();
    assert_eq!((next.recovered.put_back, folder.read()), (2, ["before", "before"].map(str::to_owned)));
    set(&mut next, &folder.words("two"));
    drop(next);
    assert_eq!(folder.read(), ["before", "before"]);
}

#[test]
fn a_death_between_a_write_and_its_reading_back_leaves_a_word_that_is_recognised() {
    let folder = Folder::new();
    let file = folder.root.join("a");
    let record = format!("[{{\"file\":{file:?},\"before\":\"before\",\"written\":[\"One\"]}}]");
    fs::write(folder.state(), record).unwrap();
    // As the kernel shows the word.
    fs::write(&file, "one\n").unwrap();
    assert_eq!((folder.undo().recovered.put_back, folder.read()[0].as_str()), (1, "before"));
}

#[test]
fn nothing_is_changed_when_the_record_cannot_be_written() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    fs::remove_dir_all(folder.root.join("run")).unwrap();
    assert!(undo.set(&folder.words("one")).is_err());
    assert_eq!(folder.read(), ["before", "before"]);
}

#[test]
fn a_setting_that_cannot_be_put_back_keeps_its_value_before_until_it_can() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    set(&mut undo, &folder.words("one"));
    folder.block();
    drop(undo);
    assert!(folder.state().exists());
    let again = folder.undo();
    assert_eq!(again.recovered.failed.len(), 1, "{:?}", again.recovered);
    drop(again);
    assert!(folder.state().exists());
    folder.unblock();
    let recovered = folder.undo().recovered.clone();
    assert_eq!((recovered.put_back, recovered.failed.len()), (1, 0));
    assert_eq!((folder.read(), folder.state().exists()), (["before", "before"].map(str::to_owned), false));
}

#[test]
fn a_setting_that_was_made_again_keeps_its_own_value_and_has_it_put_back() {
    let folder = Folder::new();
    let (mut undo, file) = (folder.undo(), folder.root.join("a"));
    set(&mut undo, &folder.words("one"));
    folder.make_anew("another\n");
    assert!(!undo.is_changed_by_others(&file), "nothing was written to it");
    assert_eq!(undo.before(&file), None);
    let outcome = undo.put_back();
    assert_eq!(outcome, Outcome { put_back: 1, ..Outcome::default() });
    assert_eq!(folder.read(), ["another", "before"].map(str::to_owned));
    set(&mut undo, &folder.words("one"));
    folder.make_anew("third\n");
    set(&mut undo, &folder.words("two"));
    assert_eq!((undo.before(&file), folder.read()), (Some("third"), ["two", "two"].map(str::to_owned)));
    drop(undo);
    assert_eq!((folder.read(), folder.state().exists()), (["third", "before"].map(str::to_owned), false));
}

#[test]
fn what_was_made_again_after_a_crash_stays_even_with_the_value_that_was_written() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    set(&mut undo, &folder.words("one"));
    Folder::kill(undo);
    folder.make_anew("one\n");
    assert!(!super::originals(KIND, &folder.state(), &folder.root).contains_key(&folder.root.join("a")));
    assert_eq!(folder.undo().recovered, Outcome { put_back: 1, ..Outcome::default() });
    assert_eq!((folder.read(), folder.state().exists()), (["one", "before"].map(str::to_owned), false));
}

#[test]
fn what_is_made_again_just_before_it_is_written_is_not_written() {
    let folder = Folder::new();
    let file = folder.root.join("a");
    let (_, inode) = KIND.read(&file).unwrap();
    folder.make_anew("another\n");
    assert!(super::is_gone(&KIND.write(&file, inode, "one").unwrap_err()));
    assert_ne!(folder.read()[0], "one");
}

#[test]
fn records_without_numbers_are_read_and_versions_without_them_read_those_with_numbers() {
    #[derive(serde::Deserialize)]
    struct Old {
        file: PathBuf,
        before: String,
        written: Vec<String>,
    }
    let folder = Folder::new();
    let file = folder.root.join("a");
    let record = format!("[{{\"file\":{file:?},\"before\":\"before\",\"written\":[\"one\"]}}]");
    fs::write(folder.state(), record).unwrap();
    folder.make_anew("one\n");
    assert_eq!((folder.undo().recovered.put_back, folder.read()[0].as_str()), (1, "before"));
    let mut undo = folder.undo();
    set(&mut undo, &folder.words("one"));
    let text = fs::read_to_string(folder.state()).unwrap();
    let old: Vec<Old> = serde_json::from_str(&text).unwrap();
    assert_eq!((&old[0].file, old[0].before.as_str(), old[0].written.len()), (&file, "before", 1));
    let number = serde_json::from_str::<serde_json::Value>(&text).unwrap()[0]["inode"].as_u64();
    assert_eq!(number, KIND.inode(&file));
}

#[test]
fn a_setting_that_is_gone_has_nothing_put_back_and_is_no_error() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    set(&mut undo, &folder.words("one"));
    fs::remove_file(folder.root.join("a")).unwrap();
    assert_eq!(undo.put_back(), Outcome { put_back: 1, ..Outcome::default() });
    assert!(!folder.state().exists());
}

#[test]
fn one_setting_that_fails_does_not_stop_the_others() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    folder.block();
    let failed = undo.set(&folder.words("one")).unwrap();
    assert_eq!(failed.iter().map(|(file, _)| file).collect::<Vec<_>>(), [&folder.root.join("a")]);
    assert_eq!(fs::read_to_string(folder.root.join("b")).unwrap(), "one\n");
}

#[test]
fn the_lock_holds_while_the_record_is_replaced() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    for word in ["one", "two", "before"] {
        set(&mut undo, &folder.words(word));
        assert!(folder.lock().unwrap().is_none());
    }
    drop(undo);
    assert!(folder.lock().unwrap().is_some());
}

#[test]
fn links_damaged_records_and_other_files_are_refused() {
    let folder = Folder::new();
    let why = || folder.lock().unwrap_err().to_string();
    symlink(folder.root.join("b"), folder.state()).unwrap();
    assert!(folder.lock().is_err());
    fs::remove_file(folder.state()).unwrap();
    fs::write(folder.state(), "garbage").unwrap();
    assert!(why().contains("it is damaged"), "{}", why());
    let entry = |file: &str| format!("[{{\"file\":{file:?},\"before\":\"x\",\"written\":[\"before\"]}}]");
    for file in [folder.root.join("c"), folder.root.join("run/../a"), PathBuf::from("/etc/a")] {
        fs::write(folder.state(), entry(file.to_str().unwrap())).unwrap();
        assert!(why().contains("none of the things"), "{}", why());
    }
    assert_eq!(folder.read(), ["before", "before"]);
}

#[test]
fn an_empty_word_that_is_refused_is_replaced_by_one_of_the_same_effect() {
    let refuses_empty = |word: &str| match word {
        "" => Err(std::io::Error::other("no space left")),
        "everything" => Ok(()),
        other => panic!("{other}"),
    };
    let write = |instead: Option<&str>| write_or_instead("", || instead.map(str::to_owned), refuses_empty);
    assert!(write(Some("everything")).is_ok());
    assert_eq!(write(None).unwrap_err().to_string(), "no space left");
    assert!(write_or_instead("", || panic!("not needed"), |_| Ok(())).is_ok());
}

#[test]
fn a_setting_that_was_empty_and_has_everything_again_is_not_changed_by_others() {
    let folder = Folder::new();
    fs::write(folder.root.join("a"), "\n").unwrap();
    let mut undo = folder.undo();
    assert!(undo.set(&folder.words("less")).unwrap().is_empty());
    Folder::kill(undo);
    // As after a death between this and the record's removal.
    fs::write(folder.root.join("a"), "everything\n").unwrap();
    let undo = folder.undo();
    assert_eq!(undo.recovered, Outcome { put_back: 1, ..Outcome::default() });
    assert_eq!(folder.read(), ["everything", "before"]);
}
