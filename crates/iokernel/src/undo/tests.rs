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

    /// Makes `a` unreadable and unwritable for root, too, or makes it a setting with this value
    /// again.
    fn block(&self, value: Option<&str>) {
        let file = self.root.join("a");
        match value {
            None => fs::remove_file(&file).and_then(|()| fs::create_dir(&file)).unwrap(),
            Some(value) => fs::remove_dir(&file).and_then(|()| fs::write(&file, value)).unwrap(),
        }
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
    folder.block(None);
    drop(undo);
    assert!(folder.state().exists());
    let again = folder.undo();
    assert_eq!(again.recovered.failed.len(), 1, "{:?}", again.recovered);
    drop(again);
    assert!(folder.state().exists());
    folder.block(Some("one\n"));
    let recovered = folder.undo().recovered.clone();
    assert_eq!((recovered.put_back, recovered.failed.len()), (1, 0));
    assert_eq!((folder.read(), folder.state().exists()), (["before", "before"].map(str::to_owned), false));
}

#[test]
fn one_setting_that_fails_does_not_stop_the_others() {
    let folder = Folder::new();
    let mut undo = folder.undo();
    folder.block(None);
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
