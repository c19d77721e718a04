//! Whose user ids subordinate ones are (subuid(5)).
//!
//! Owns [`Subordinates`], the ranges of `/etc/subuid`, which is read again when it has changed. A
//! user with such a range runs processes under each id of it (newuidmap(1)), so what one user may
//! have counts for all of them together. Rights do not follow: an id has those that a grant gives
//! to itself.
//!
//! | condition | the id counts as |
//! |---|---|
//! | in ranges of several owners | the owner of the first line |
//! | in a range of an owner who is not found | the owner of the next line with it; looked up again after [`RETRY`] |
//! | in a range of root, or of another user whose programs have no limits | itself: such a range serves many users |
//! | in no range, or there is no file | itself: then newuidmap maps no id either |
//! | the file cannot be read | itself; a line of the log says so |
//! | beyond [`MOST_BYTES`] or [`MOST_RANGES`] | itself; a line of the log says so |

use rustix::fs::OFlags;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::sys::accounts;

/// Maximum length of the file that is read: that of some 40,000 lines.
const MOST_BYTES: u64 = 1 << 20;
/// Maximum number of ranges, all of which a look-up reads: some ten microseconds.
const MOST_RANGES: usize = 16_384;

/// Time until an owner is looked up again who was not found: a directory service may not answer
/// yet, and the control thread waits for it, so not for each connection.
const RETRY: Duration = Duration::from_secs(60);

/// A look-up of a user by name.
type Find = fn(&str) -> Result<Option<u32>, Errno>;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Range {
    /// The name or number of the user.
    owner: String,
    first: u32,
    count: u32,
    /// The owner's number, once it was found.
    found: Option<u32>,
    /// When it was last looked up in vain.
    missed: Option<Instant>,
}

impl Range {
    /// Parses a line; `None` if it is no range of ids.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
        let is_range = !owner.is_empty() && fields.next().is_none() && count > 0;
        // Of one that goes beyond the last id, newuidmap maps nothing.
        (is_range && first.checked_add(count - 1).is_some()).then(|| Self {
            owner: owner.to_owned(),
            first,
            count,
            found: owner.parse().ok(),
            missed: None,
        })
    }

    fn contains(&self, uid: u32) -> bool {
        uid.checked_sub(self.first).is_some_and(|offset| offset < self.count)
    }
}

/// The ranges of one state of the file.
#[derive(Debug, Default)]
struct Table {
    /// What tells this state of the file from another one.
    state: Option<State>,
    ranges: Vec<Range>,
}

/// Device, number, length and time of the last change of a file.
type State = (u64, u64, u64, i64, i64);

impl Table {
    /// Parses the lines of a file; returns whether it has more ranges than are kept, too.
    fn parse(text: &str) -> (Vec<Range>, bool) {
        let mut ranges = text.lines().filter_map(Range::parse);
        (ranges.by_ref().take(MOST_RANGES).collect(), ranges.next().is_some())
    }

    /// Returns the owner of an id, by the first range that has it and an owner.
    fn owner(&mut self, uid: u32, find: Find, now: Instant) -> Option<u32> {
        let mut of_it = self.ranges.iter_mut().filter(|range| range.contains(uid));
        of_it.find_map(|range| {
            let is_due = range.missed.is_none_or(|missed| now >= missed + RETRY);
            if range.found.is_none() && is_due {
                range.found = look_up(find, &range.owner);
                range.missed = range.found.is_none().then_some(now);
            }
            range.found
        })
    }
}

/// Returns the number of a user, `None` if there is none or it cannot be told now.
fn look_up(find: Find, owner: &str) -> Option<u32> {
    find(owner).unwrap_or_else(|error| {
        tracing::warn!(
            %error, owner,
            "cannot look up whose subordinate ids are: each counts as a user by itself"
        );
        None
    })
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Subordinates {
    path: PathBuf,
    find: Find,
    table: RefCell<Table>,
}

impl Subordinates {
    /// Returns those of this machine.
    pub(crate) fn of_machine() -> Self {
        Self { path: "/etc/subuid".into(), find: accounts::user, table: RefCell::default() }
    }

    /// Returns the user as whom an id counts.
    pub(crate) fn owner(&self, uid: u32) -> u32 {
        let mut table = self.table.borrow_mut();
        let state = std::fs::metadata(&self.path).ok().map(|found| state_of(&found));
        if state != table.state {
            *table = Table { state, ranges: self.read() };
        }
        table.owner(uid, self.find, Instant::now()).unwrap_or(uid)
    }

    fn read(&self) -> Vec<Range> {
        let file = self.path.display();
        let (ranges, is_whole) = match self.read_text() {
            Ok((text, is_whole)) => {
                let (ranges, more) = Table::parse(&text);
                (ranges, is_whole && !more)
            }
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(
                        %error, %file,
                        "cannot read whose subordinate ids are: each counts as a user by itself"
                    );
                }
                return Vec::new();
            }
        };
        if !is_whole {
            let read = ranges.len();
            tracing::warn!(
                %file, read,
                "has too many subordinate ids: each of the rest counts as a user by itself"
            );
        }
        ranges
    }

    /// Returns the text of the file as far as it is read, and whether that is all of it.
    fn read_text(&self) -> io::Result<(String, bool)> {
        // Nonblocking: a pipe in its place is refused below.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        let len = file.take(MOST_BYTES + 1).read_to_end(&mut bytes)? as u64;
        let is_whole = len <= MOST_BYTES;
        if !is_whole {
            // A line that is cut may have another range.
            bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n').unwrap_or(0));
        }
        Ok((String::from_utf8_lossy(&bytes).into_owned(), is_whole))
    }
}

fn state_of(found: &Metadata) -> State {
    (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::super::{Authority, Held, Usage, User};
    use super::*;
    use crate::config::Config;
    use proptest::prelude::*;
    use tailwater_shm::control::{Instance, ProgramClass, Register};
    use tailwater_shm::layout::VERSION;

    /// The accounts of the tests: `u7` has number 7; no user has the name `gone`, and `far` cannot
    /// be looked up.
    fn find(name: &str) -> Result<Option<u32>, Errno> {
        if name == "far" {
            return Err(Errno::IO);
        }
        Ok(name.strip_prefix('u').and_then(|number| number.parse().ok()))
    }

    fn owner(text: &str, uid: u32) -> Option<u32> {
        Table { state: None, ranges: Table::parse(text).0 }.owner(uid, find, Instant::now())
    }

    #[test]
    fn an_owner_who_is_not_found_is_looked_up_again_after_a_minute() {
        let mut table = Table { state: None, ranges: Table::parse("late:100:10\n").0 };
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let (away, found): (Find, Find) = (|_| Err(Errno::IO), |_| Ok(Some(5)));
        assert_eq!(table.owner(100, away, begin), None);
        assert_eq!(table.owner(100, found, begin + RETRY - second), None);
        assert_eq!(table.owner(100, |_| Ok(None), begin + RETRY), None);
        assert_eq!(table.owner(101, found, begin + 2 * RETRY), Some(5));
        assert_eq!(table.owner(100, away, begin + 9 * RETRY), Some(5));
    }

    #[test]
    fn an_id_belongs_to_the_owner_of_the_first_line_with_it() {
        let text = "u5:100:10\n6:105:10\ngone:200:5\nfar:200:5\nu7:202:1\n";
        let cases = [(99, None), (100, Some(5)), (109, Some(5)), (110, Some(6)), (115, None)];
        for (uid, expected) in cases.into_iter().chain([(201, None), (202, Some(7))]) {
            assert_eq!(owner(text, uid), expected, "{uid}");
        }
    }

    #[test]
    fn lines_that_are_no_ranges_are_left_out() {
        for line in ["", ":1:2", "u5", "u5:1", "u5:1:2:3", "u5:x:2", "u5:-1:2", "u5:1:0", "u5:4294967295:2"] {
            assert_eq!(owner(&format!("{line}\nu6:0:4294967295"), 1), Some(6), "{line:?}");
        }
        assert_eq!(owner("u5:4294967295:1", u32::MAX), Some(5));
    }

    #[test]
    fn a_long_file_is_read_up_to_its_limits() {
        let text = "u5:1:1\n".repeat(MOST_RANGES) + "u6:2:1\n";
        let (ranges, more) = Table::parse(&text);
        assert_eq!((ranges.len(), more), (MOST_RANGES, true));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let all = Subordinates { path: path.clone(), find, table: RefCell::default() };
        std::fs::write(&path, "u5:100:10\n".to_owned() + &"#".repeat(1 << 20) + "\nu6:300:1\n").unwrap();
        assert_eq!((all.owner(100), all.owner(300)), (5, 300));
    }

    #[test]
    fn the_file_is_read_again_when_it_has_changed_and_may_be_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("subuid");
        let all = Subordinates { path: path.clone(), find, table: RefCell::default() };
        assert_eq!(all.owner(100), 100, "no file");
        std::fs::write(&path, "u5:100:10").unwrap();
        assert_eq!(all.owner(100), 5);
        std::fs::write(folder.path().join("next"), "u6:100:10").unwrap();
        std::fs::rename(folder.path().join("next"), &path).unwrap();
        assert_eq!(all.owner(100), 6, "another file of the same length");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert_eq!(all.owner(100), 100, "no file, but a folder");
    }

    fn file(lines: &[(u32, u32, u32)]) -> String {
        lines.iter().map(|(owner, first, count)| format!("u{owner}:{first}:{count}\n")).collect()
    }

    /// Registers a program for each of `uids`, as far as a grant of `programs` to all users permits
    /// it; returns what is used then.
    fn register(authority: &Authority, text: &str, uids: &[u32]) -> Usage {
        let mut usage = Usage::default();
        for &uid in uids {
            let user = user(uid, owner(text, uid).unwrap_or(uid));
            if authority.rule_on(&user, &request(), 1, |_| usage.clone()).is_ok() {
                usage.add(authority.counts_for(&user), Held { programs: 1, ..Held::default() });
            }
        }
        usage
    }

    fn user(uid: u32, owner: u32) -> User {
        User { uid, owner, groups: Vec::new(), privileged: false }
    }

    fn request() -> Register {
        Register {
            version: VERSION,
            name: "a".to_owned(),
            kthreads: 1,
            guaranteed: 0,
            class: ProgramClass::BestEffort,
            ring_bytes: 1 << 16,
            ip: None,
            returns: false,
            instance: Instance::Only,
            listen: Vec::new(),
        }
    }

    proptest! {
        /// Whatever ids a user runs programs under, another one finds room for one.
        #[test]
        fn one_owner_does_not_use_up_a_grant(
            lines in proptest::collection::vec((1..4u32, 10..400u32, 1..200u32), 0..12),
            ids in proptest::collection::vec(4..700u32, 0..60),
            programs in 4..24u32,
            user_id in 1..4u32,
        ) {
            let grant = format!("[[grant]]\nusers = \"*\"\nprograms = {programs}");
            let config = Config::from_toml(&grant).unwrap();
            let authority = Authority::resolve_with(&config, |_| Ok(None), |_| Ok(None)).unwrap();
            let text = file(&lines);
            let subordinate = ids.into_iter().filter(|&uid| owner(&text, uid) == Some(user_id));
            let own: Vec<u32> = subordinate.chain([user_id; 30]).collect();
            let usage = register(&authority, &text, &own);
            prop_assert_eq!(usage.all().programs, u64::from(programs - programs / 4));
            prop_assert!(authority.rule_on(&user(1000, 1000), &request(), 1, |_| usage.clone()).is_ok());
        }

        /// Ranges overlap as they like: each id counts as one user, and that of the first line.
        #[test]
        fn each_id_has_the_first_owner(
            lines in proptest::collection::vec((1..9u32, 0..400u32, 0..200u32), 0..12),
            uid in 0..700u32,
        ) {
            let text = file(&lines);
            let first = lines.iter().find(|(_, first, count)| (*first..first + count).contains(&uid));
            prop_assert_eq!(owner(&text, uid), first.map(|(owner, ..)| *owner));
        }
    }
}
