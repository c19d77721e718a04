//! Zones from master files (RFC 1035, section 5; RFC 2308, section 4 for `$TTL`; RFC 3597 for unknown types).
//!
//! Owns the files of a zone, with what they include, and the checks of single records. Files come through a function, so that this
//! module needs no file system. Everything wrong is reported, not only the first; only what the reader does not understand
//! ends a file.
//!
//! Bounds: [`MAX_DEPTH`] files within each other, [`MAX_FILES`] in a zone.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use domain::base::Record;
use domain::base::iana::{Class, Rtype};
use domain::base::name::Name;
use domain::base::rdata::{ComposeRecordData, RecordData};
use domain::zonefile::inplace::{self, ScannedDname, ScannedRecordData, Zonefile};

use super::Zone;
use super::check::check;
use super::entries::{Entry, entries};
use super::problem::{Fault, Place, Problem};
use crate::name::{FlatName, StoredName, store};
use crate::rdata::Rdata;

/// Most files within each other.
pub const MAX_DEPTH: usize = 8;

/// Most files of a zone.
pub const MAX_FILES: usize = 1000;

/// How files are read.
pub type Open<'a> = dyn FnMut(&Path) -> io::Result<Vec<u8>> + 'a;

/// Reads and checks the zone `origin` from `file`, which `open` reads, as it does what the file includes. Paths in `$INCLUDE`
/// are relative to the folder of the file they stand in; times that nobody gave are an hour.
///
/// # Errors
/// Everything that is wrong with the zone.
pub fn read_zone(origin: &StoredName, file: &Path, open: &mut Open<'_>) -> Result<Zone, Vec<Problem>> {
    let mut reader =
        Reader { zone: Zone::empty(origin), open, files: 0, problems: Vec::new(), places: HashMap::new() };
    reader.file(&Place::file(file), file, &Context { origin: origin.clone(), ttl: None, depth: 0 });
    reader.finish(file)
}

/// Reads and checks a zone from a text that includes no files.
///
/// # Errors
/// As [`read_zone`]; the file is called `-`.
pub fn parse_zone(origin: &StoredName, text: &str) -> Result<Zone, Vec<Problem>> {
    let main = Path::new("-");
    read_zone(origin, main, &mut |path| match path == main {
        true => Ok(text.as_bytes().to_vec()),
        false => Err(io::Error::new(io::ErrorKind::Unsupported, "a text includes no files")),
    })
}

/// What a file inherits from the one that includes it.
struct Context {
    origin: StoredName,
    ttl: Option<u32>,
    depth: usize,
}

struct Reader<'a, 'b> {
    zone: Zone,
    open: &'a mut Open<'b>,
    files: usize,
    problems: Vec<Problem>,
    /// Where the latest record of each name and type stands.
    places: HashMap<(Box<[u8]>, Rtype), Place>,
}

impl Reader<'_, '_> {
    fn blame(&mut self, place: &Place, fault: Fault) {
        self.problems.push(Problem { place: place.clone(), fault });
    }

    /// Reads one file; `place` is where it was asked for.
    fn file(&mut self, place: &Place, path: &Path, context: &Context) {
        if context.depth >= MAX_DEPTH {
            return self.blame(place, Fault::Depth(MAX_DEPTH));
        }
        self.files += 1;
        if self.files > MAX_FILES {
            return self.blame(place, Fault::Files(MAX_FILES));
        }
        match (self.open)(path) {
            Ok(text) => self.text(path, text, context),
            Err(error) => self.blame(&Place::file(path), Fault::Read(error)),
        }
    }

    fn text(&mut self, path: &Path, mut text: Vec<u8>, context: &Context) {
        // The reader takes an entry for unfinished that no line end follows, and must not see one that is.
        text.push(b'\n');
        let unfinished = entries(&text).find(|entry| !entry.complete);
        if let Some((line, len)) = unfinished.map(|entry| (Some(entry.line), entry.text.len())) {
            let begins = text.len() - len;
            self.blame(&Place { file: path.to_owned(), line }, Fault::Unfinished);
            text.truncate(begins);
        }
        let mut scanner = Zonefile::with_capacity(text.len());
        let inherited = context.ttl.map(|ttl| format!("$TTL {ttl}\n")).unwrap_or_default();
        scanner.extend_from_slice(inherited.as_bytes());
        scanner.extend_from_slice(&text);
        scanner.set_default_class(Class::IN);
        scanner.set_origin(as_bytes(&context.origin));
        let (mut ttl, mut lines) = (context.ttl, entries(&text));
        loop {
            let entry = next_entry(&mut lines, &mut ttl);
            let place = Place { file: path.to_owned(), line: entry.map(|entry| entry.line) };
            match scanner.next_entry() {
                Ok(Some(inplace::Entry::Record(record))) => self.record(&place, &record),
                Ok(Some(inplace::Entry::Include { path: included, origin })) => {
                    let origin = origin.or_else(|| scanner.origin().ok());
                    let origin = match origin.as_ref().map(FlatName::alleged) {
                        Some(Some(origin)) => store(origin.name()),
                        Some(None) => return self.blame(&place, Fault::Name),
                        None => context.origin.clone(),
                    };
                    let beside = path.parent().unwrap_or(Path::new("")).join(PathBuf::from(&*included));
                    self.file(&place, &beside, &Context { origin, ttl, depth: context.depth + 1 });
                }
                Ok(None) => return,
                Err(error) => return self.blame(&syntax_place(place, &error, &inherited), syntax(&error)),
            }
        }
    }

    fn record(&mut self, place: &Place, record: &Record<ScannedDname, ScannedRecordData>) {
        let rtype = record.data().rtype();
        let Some(owner) = FlatName::alleged(record.owner()) else { return self.blame(place, Fault::Name) };
        if record.class() != Class::IN {
            return self.blame(place, Fault::Class(record.class()));
        }
        if let Some(fault) = check_type(rtype) {
            return self.blame(place, fault);
        }
        if !owner.is_within(self.zone.origin()) {
            let zone = self.zone.apex().name().clone();
            return self.blame(place, Fault::OutOfZone { owner: store(owner.name()), zone });
        }
        let mut wire = Vec::new();
        let Ok(()) = record.data().compose_rdata(&mut wire);
        match Rdata::from_wire(rtype, &wire) {
            Ok(data) => {
                // A time with the highest bit set is none (RFC 2181, section 8).
                let ttl = i32::try_from(record.ttl().as_secs()).map_or(0, i32::cast_unsigned);
                self.zone.insert(&owner, rtype, ttl, data);
                self.places.insert((owner.suffix(owner.labels()).into(), rtype), place.clone());
            }
            Err(malformed) => self.blame(place, malformed.into()),
        }
    }

    fn finish(mut self, file: &Path) -> Result<Zone, Vec<Problem>> {
        // What is missing may stand in lines that were not understood.
        let complete = self.problems.is_empty();
        for (owner, fault) in check(&self.zone) {
            let place = owner.and_then(|(name, rtype)| {
                let name = FlatName::new(&name);
                self.places.get(&(name.suffix(name.labels()).into(), rtype)).cloned()
            });
            if complete || place.is_some() && !matches!(fault, Fault::NoAddress { .. }) {
                self.blame(&place.unwrap_or_else(|| Place::file(file)), fault);
            }
        }
        if self.problems.is_empty() { Ok(self.zone) } else { Err(self.problems) }
    }
}

/// The next entry that the reader will give to us, following `$TTL` on the way.
fn next_entry<'a>(lines: &mut impl Iterator<Item = Entry<'a>>, ttl: &mut Option<u32>) -> Option<Entry<'a>> {
    lines.find(|entry| {
        *ttl = entry.ttl().or(*ttl);
        !entry.is_setting()
    })
}

fn as_bytes(name: &StoredName) -> Name<Bytes> {
    Name::from_octets(Bytes::copy_from_slice(name.as_slice())).expect("copied from a name")
}

/// The reader says `LINE:COLUMN: WHY`, and may have gone on to the next line before it noticed.
fn syntax(error: &inplace::Error) -> Fault {
    let text = error.to_string();
    Fault::Syntax(text.splitn(3, ':').nth(2).map_or(text.clone(), |why| why.trim().to_owned()))
}

/// The line of the entry; where the reader stopped at a setting, which we did not count, the line that it says.
fn syntax_place(place: Place, error: &inplace::Error, inherited: &str) -> Place {
    let said = error.to_string().split(':').next().and_then(|line| line.parse::<usize>().ok());
    let said = said.map(|line| line.saturating_sub(inherited.lines().count()).max(1));
    let line = match (place.line, said) {
        (Some(begins), Some(said)) => Some(begins.min(said)),
        (begins, said) => begins.or(said),
    };
    Place { line, ..place }
}

/// Types that no zone of ours may hold.
fn check_type(rtype: Rtype) -> Option<Fault> {
    match rtype {
        Rtype::RRSIG | Rtype::DNSKEY | Rtype::NSEC | Rtype::NSEC3 | Rtype::NSEC3PARAM | Rtype::DNAME => {
            Some(Fault::Unsupported(rtype))
        }
        // RFC 6895, section 3.1: 128 to 255 are for questions and messages; 0 and OPT never stand in zones.
        _ if matches!(rtype.to_int(), 0 | 41 | 128..=255) => Some(Fault::Meta(rtype)),
        _ => None,
    }
}
