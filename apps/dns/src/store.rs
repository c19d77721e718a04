//! The zones being served, and their replacement at run time.
//!
//! Owns which files the zones come from, and the [catalog](Catalog) that all threads answer from. A
//! reload reads and checks everything before it replaces anything: a zone whose files have errors
//! stays as it was. Queries never wait for a reload, and do not free what it replaced, which takes
//! long for many records: the store keeps a reference to each replaced catalog, and drops those
//! without other references in [`Store::sweep`], which threads that answer no queries call.
//!
//! | field | written by | read by | ordering |
//! |---|---|---|---|
//! | `table` | [`Store::reload`] | a [`Reader`] when the generation has changed | the [`Rcu`]'s |
//! | `generation` | [`Store::reload`] after `table`, Release | [`Reader::zones`] for each query, Acquire | a thread that sees a new generation finds its table, or a later one |
//! | `replaced` | [`Store::reload`], [`Store::sweep`] | the same | its lock's, held during a reload |

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tailwater::sync::{Mutex, Rcu};

use crate::catalog::Catalog;
use crate::name::{FlatName, StoredName};
use crate::zone::Zone;
use crate::zone::problem::Problem;
use crate::zone::read::read_zone;

/// A zone and its file.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name of the zone.
    pub origin: StoredName,
    /// Its master file.
    pub file: PathBuf,
}

impl Source {
    /// Reads and checks the zone.
    ///
    /// # Errors
    /// All problems of the zone.
    pub fn load(&self) -> Result<Arc<Zone>, Vec<Problem>> {
        read_zone(&self.origin, &self.file, &mut |path: &Path| std::fs::read(path)).map(Arc::new)
    }
}

/// The zones of a server. Shared by all threads; each thread that answers takes a [`Reader`].
#[derive(Debug)]
pub struct Store {
    sources: Vec<Source>,
    table: Rcu<Catalog>,
    generation: AtomicU64,
    /// Replaced catalogs that may still be in use. Locked during a reload.
    replaced: Mutex<Vec<Arc<Catalog>>>,
}

/// Result of a reload.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Zones that were read again.
    pub loaded: usize,
    /// Zones that stay as they were, because of problems.
    pub kept: usize,
    /// Their problems.
    pub problems: Vec<Problem>,
}

impl Store {
    /// Reads all zones.
    ///
    /// # Errors
    /// All problems of all zones.
    pub fn open(sources: Vec<Source>) -> Result<Self, Vec<Problem>> {
        let (mut zones, mut problems) = (Vec::new(), Vec::new());
        for source in &sources {
            match source.load() {
                Ok(zone) => zones.push(zone),
                Err(more) => problems.extend(more),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let table = Rcu::new(Catalog::new(zones));
        Ok(Self { sources, table, generation: AtomicU64::new(0), replaced: Mutex::default() })
    }

    /// Reads all zones again; those without problems are served from now on. Reads files: call it
    /// on an ordinary thread.
    ///
    /// # Panics
    /// If another reload has panicked, or a sweep.
    pub fn reload(&self) -> Reloaded {
        let mut replaced = self.replaced.lock().expect("a reload panicked");
        let (mut zones, mut done) = (Vec::new(), Reloaded::default());
        let before = self.table.get();
        for source in &self.sources {
            match source.load() {
                Ok(zone) => {
                    zones.push(zone);
                    done.loaded += 1;
                }
                Err(problems) => {
                    zones.extend(before.zone(&FlatName::new(&source.origin)).cloned());
                    done.kept += 1;
                    done.problems.extend(problems);
                }
            }
        }
        self.table.replace(Catalog::new(zones));
        // Release: pairs with the Acquire in `Reader::zones`.
        self.generation.fetch_add(1, Ordering::Release);
        replaced.push(before);
        drop_unused(&mut replaced);
        done
    }

    /// Frees the catalogs that reloads have replaced and from which no thread answers any more;
    /// returns how many are left. Takes a while for many records: call it on an ordinary thread. At
    /// most one is left for each [`Reader`] and for each connection that is being answered.
    ///
    /// # Panics
    /// If a reload has panicked.
    pub fn sweep(&self) -> usize {
        let mut replaced = self.replaced.lock().expect("a reload panicked");
        drop_unused(&mut replaced);
        replaced.len()
    }

    /// Returns the current zones.
    pub fn zones(&self) -> Arc<Catalog> {
        self.table.get()
    }

    /// Returns a view for one answering thread.
    pub fn reader(&self) -> Reader<'_> {
        // Acquire, and before the table: after a reload in between, the reader reads the table
        // again.
        let generation = self.generation.load(Ordering::Acquire);
        Reader { store: self, generation, zones: self.table.get() }
    }
}

/// A replaced catalog gets no new references, so one with a single reference stays so.
fn drop_unused(replaced: &mut Vec<Arc<Catalog>>) {
    replaced.retain(|catalog| Arc::strong_count(catalog) > 1);
}

/// One thread's view of the zones: it reads a counter for each query, instead of counting
/// references that all threads share. It keeps the zones of the thread's latest query alive until
/// the next call of [`zones`](Self::zones).
#[derive(Debug)]
pub struct Reader<'a> {
    store: &'a Store,
    generation: u64,
    zones: Arc<Catalog>,
}

impl Reader<'_> {
    /// Returns the current zones. Drops the previous ones.
    #[inline]
    pub fn zones(&mut self) -> &Catalog {
        // Acquire: pairs with the Release in `Store::reload`.
        let generation = self.store.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.zones = self.store.table.get();
        }
        &self.zones
    }
}
