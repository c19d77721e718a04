//! The zones being served, and their replacement while they are.
//!
//! Owns which files the zones come from, and the [catalog](Catalog) that everybody answers from. A reload reads and checks
//! everything before it replaces anything: a zone whose files are wrong stays as it was. Queries never wait for it, and do not
//! free what it replaced, which takes long for many records: the store keeps a reference to each replaced catalog, and drops
//! those that nobody else has in [`Store::sweep`], which threads call that answer nothing.
//!
//! | field | written by | read by | ordering |
//! |---|---|---|---|
//! | `table` | [`Store::reload`] | a [`Reader`] when the generation has changed | the [`Rcu`]'s |
//! | `generation` | [`Store::reload`] after `table`, Release | [`Reader::zones`] for each query, Acquire | who sees a new generation finds its table, or a later one |
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

/// A zone and where it comes from.
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
    /// Everything that is wrong with it.
    pub fn load(&self) -> Result<Arc<Zone>, Vec<Problem>> {
        read_zone(&self.origin, &self.file, &mut |path: &Path| std::fs::read(path)).map(Arc::new)
    }
}

/// The zones of a server. Share it among all threads; each that answers takes a [`Reader`].
#[derive(Debug)]
pub struct Store {
    sources: Vec<Source>,
    table: Rcu<Catalog>,
    generation: AtomicU64,
    /// Catalogs of earlier, as long as anybody may answer from them. Held during a reload.
    replaced: Mutex<Vec<Arc<Catalog>>>,
}

/// What a reload did.
#[derive(Debug, Default)]
pub struct Reloaded {
    /// Zones read anew.
    pub loaded: usize,
    /// Zones that stay as they were, because of the problems.
    pub kept: usize,
    /// What is wrong with those.
    pub problems: Vec<Problem>,
}

impl Store {
    /// Reads all zones.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
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

    /// Reads all zones again and serves those that are right from now on. Reads files: call it on an ordinary thread.
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

    /// Frees the catalogs that reloads have replaced and nobody answers from any more; returns how many are left. Takes a while
    /// for many records: call it on an ordinary thread. At most one is left for each [`Reader`] and for each connection that is
    /// being answered.
    ///
    /// # Panics
    /// If a reload has panicked.
    pub fn sweep(&self) -> usize {
        let mut replaced = self.replaced.lock().expect("a reload panicked");
        drop_unused(&mut replaced);
        replaced.len()
    }

    /// The zones as they are now.
    pub fn zones(&self) -> Arc<Catalog> {
        self.table.get()
    }

    /// A view for one thread that answers.
    pub fn reader(&self) -> Reader<'_> {
        // Acquire, and before the table: a reload in between makes the reader look again.
        let generation = self.generation.load(Ordering::Acquire);
        Reader { store: self, generation, zones: self.table.get() }
    }
}

/// Nobody can get hold of a replaced catalog, so one with a single reference stays so.
fn drop_unused(replaced: &mut Vec<Arc<Catalog>>) {
    replaced.retain(|catalog| Arc::strong_count(catalog) > 1);
}

/// One thread's view of the zones: a look at a counter for each query, instead of a reference that all threads count.
/// It keeps the zones of the thread's latest query alive until the next call of [`zones`](Self::zones).
#[derive(Debug)]
pub struct Reader<'a> {
    store: &'a Store,
    generation: u64,
    zones: Arc<Catalog>,
}

impl Reader<'_> {
    /// The zones as they are now. Lets go of those before.
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
