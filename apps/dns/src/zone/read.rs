//! Zones from master files (RFC 1035, section 5; RFC 2308, section 4 for `$TTL`; RFC 3597 for
//! unknown types).
//!
//! Owns the files of a zone, with the files they include, and the checks of single records. Files
//! are read by a function argument, so that this module needs no file system. All problems are
//! reported, not only the first; only a syntax error ends a file.
//!
//! Bounds: [`MAX_DEPTH`] nested files, [`MAX_FILES`] in a zone.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use bytes::Bytes;
use domain::base::Record;
use domain::base::iana::{Class, Rtype};
use domain::base::name::Name;
use domain::base::rdata::{ComposeRecordData, RecordData};
use domain::zonefile::inplace::{self, ScannedDname, ScannedRecordData, Zonefile};

use super::Zone;
use super::check::check;
use super::entries::entries;
use super::problem::{Fault, Place, Problem};
use super::syntax::{escape, included, translate};
use crate::name::{FlatName, StoredName, store};
use crate::rdata::Rdata;

/// Maximum depth of nested files.
pub const MAX_DEPTH: usize = 8;

/// Maximum number of files of a zone.
pub const MAX_FILES: usize = 1000;

/// The function that reads files.
pub type Open<'a> = dyn FnMut(&Path) -> io::Result<Vec<u8>> + 'a;

/// Reads and checks the zone `origin` from `file`, which `open` reads, as well as the files it
/// includes. Paths in `$INCLUDE` are relative to the folder of the including file; the default TTL
/// is an hour.
///
/// # Errors
/// All problems of the zone.
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

/// What an included file inherits.
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
    /// The place of the latest record of each name and type.
    places: HashMap<(Box<[u8]>, Rtype), Place>,
}

impl Reader<'_, '_> {
    fn blame(&mut self, place: &Place, fault: Fault) {
        self.problems.push(Problem { place: place.clone(), fault });
    }

    /// Reads one file; `place` is where it is included.
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
        // The reader treats an entry without a line end as unfinished.
        text.push(b'\n');
        let mut scanner = Zonefile::with_capacity(text.len());
        scanner.set_default_class(Class::IN);
        scanner.set_origin(as_bytes(&context.origin));
        let mut ttl = context.ttl;
        if let Some(ttl) = ttl {
            scanner.extend_from_slice(format!("$TTL {ttl}\n").as_bytes());
        }
        // The reader gets one entry at a time: it reports no positions of what it has read.
        for entry in entries(&text) {
            let place = Place { file: path.to_owned(), line: Some(entry.line) };
            if !entry.complete {
                return self.blame(&place, Fault::Unfinished);
            }
            ttl = entry.ttl().or(ttl);
            let Some(origin) = scanner.origin().ok().and_then(|origin| FlatName::try_new(&origin)) else {
                return self.blame(&place, Fault::Name);
            };
            let escaped = escape(entry.text);
            let file = match (translate(&escaped, origin.name()), included(&escaped)) {
                (Ok(text), Ok(file)) => {
                    scanner.extend_from_slice(&text);
                    file.unwrap_or_default()
                }
                (Err(why), _) | (_, Err(why)) => return self.blame(&place, Fault::Syntax(why)),
            };
            match scanner.next_entry() {
                Ok(Some(inplace::Entry::Record(record))) => self.record(&place, &record),
                Ok(Some(inplace::Entry::Include { origin: given, .. })) => {
                    let origin = match given.as_ref().map(FlatName::try_new) {
                        Some(Some(given)) => store(given.name()),
                        Some(None) => return self.blame(&place, Fault::Name),
                        None => store(origin.name()),
                    };
                    let beside = path.parent().unwrap_or(Path::new("")).join(file);
                    self.file(&place, &beside, &Context { origin, ttl, depth: context.depth + 1 });
                }
                // A setting, which changes how others are read.
                Ok(None) => {}
                Err(error) => return self.blame(&place, syntax(&error)),
            }
        }
    }

    fn record(&mut self, place: &Place, record: &Record<ScannedDname, ScannedRecordData>) {
        let rtype = record.data().rtype();
        let Some(owner) = FlatName::try_new(record.owner()) else { return self.blame(place, Fault::Name) };
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
                // A time with the highest bit set is treated as zero (RFC 2181, section 8).
                let ttl = i32::try_from(record.ttl().as_secs()).map_or(0, i32::cast_unsigned);
                if let Err(fault) = self.zone.insert(&owner, rtype, ttl, data) {
                    return self.blame(place, fault);
                }
                self.places.insert((owner.suffix(owner.labels()).into(), rtype), place.clone());
            }
            Err(malformed) => self.blame(place, malformed.into()),
        }
    }

    fn finish(mut self, file: &Path) -> Result<Zone, Vec<Problem>> {
        // What seems missing may be in lines with errors.
        let complete = self.problems.is_empty();
        if let Err(fault) = self.zone.complete() {
            self.blame(&Place::file(file), fault);
        }
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

fn as_bytes(name: &StoredName) -> Name<Bytes> {
    Name::from_octets(Bytes::copy_from_slice(name.as_slice())).expect("copied from a name")
}

/// Parses the reader's `LINE:COLUMN: WHY`.
fn syntax(error: &inplace::Error) -> Fault {
    let text = error.to_string();
    Fault::Syntax(text.splitn(3, ':').nth(2).map_or(text.clone(), |why| why.trim().to_owned()))
}

/// Returns the fault of a type that no zone may hold.
fn check_type(rtype: Rtype) -> Option<Fault> {
    match rtype {
        // RFC 6895, section 3.1: 128 to 255 are for questions and messages; 0 and OPT never occur
        // in zones.
        _ if matches!(rtype.to_int(), 0 | 41 | 128..=255) => Some(Fault::Meta(rtype)),
        _ => None,
    }
}
