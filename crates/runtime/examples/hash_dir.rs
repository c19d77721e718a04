//! Hashes all files below a directory, in parallel: a user thread per directory and per file, files
//! read by `tailwater::blocking`.
//!
//! ```text
//! cargo run -p tailwater --release --example hash_dir -- /usr/include
//! ```
//!
//! prints a line per file, sorted by path, with its FNV-1a hash. There is a thread per file; a
//! semaphore limits the files open at a time, and the pool of `blocking` limits the reads in the
//! kernel. Symbolic links are not followed.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tailwater::sync::{Mutex, Semaphore, WaitGroup};
use tailwater::{blocking, thread};

/// Maximum number of open files: well below the usual limit of 1024 descriptors.
const MAX_OPEN: usize = 128;
/// Bytes read at a time.
const CHUNK: usize = 64 * 1024;

/// The state that all threads share.
struct Walk {
    open: Semaphore,
    found: Mutex<Vec<(PathBuf, io::Result<u64>)>>,
    threads: WaitGroup,
}

#[tailwater::main]
fn main() -> io::Result<()> {
    let root = std::env::args_os().nth(1).ok_or_else(|| io::Error::other("usage: hash_dir DIRECTORY"))?;
    let walk =
        Arc::new(Walk { open: Semaphore::new(MAX_OPEN), found: Mutex::default(), threads: WaitGroup::new() });
    walk.start(root.into(), Walk::directory);
    walk.threads.wait();
    let mut found = std::mem::take(&mut *walk.found.lock().unwrap());
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    blocking(|| {
        for (path, hash) in &found {
            match hash {
                Ok(hash) => println!("{hash:016x} {}", path.display()),
                Err(error) => eprintln!("{}: {error}", path.display()),
            }
        }
    });
    let failed = found.iter().filter(|(_, hash)| hash.is_err()).count();
    if failed == 0 { Ok(()) } else { Err(io::Error::other(format!("{failed} could not be read"))) }
}

impl Walk {
    /// Handles `path` in its own thread, which the wait group waits for.
    fn start(self: &Arc<Self>, path: PathBuf, handle: fn(&Arc<Self>, &Path) -> io::Result<()>) {
        let (walk, task) = (Arc::clone(self), self.threads.add());
        thread::spawn(move || {
            if let Err(error) = handle(&walk, &path) {
                walk.found.lock().unwrap().push((path, Err(error)));
            }
            drop(task);
        });
    }

    fn directory(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        let entries = {
            let _permit = self.open.acquire();
            blocking(|| fs::read_dir(path)?.collect::<io::Result<Vec<_>>>())?
        };
        for entry in entries {
            let kind = blocking(|| entry.file_type())?;
            if kind.is_dir() {
                self.start(entry.path(), Self::directory);
            } else if kind.is_file() {
                self.start(entry.path(), Self::file);
            }
        }
        Ok(())
    }

    fn file(self: &Arc<Self>, path: &Path) -> io::Result<()> {
        let _permit = self.open.acquire();
        let mut file = blocking(|| File::open(path))?;
        let mut chunk = vec![0; CHUNK];
        let mut hash = Fnv::default();
        loop {
            // The read waits in the kernel, on another thread; the hashing runs on this thread, on
            // this core.
            let len = blocking(|| file.read(&mut chunk))?;
            if len == 0 {
                break;
            }
            hash.update(&chunk[..len]);
        }
        self.found.lock().unwrap().push((path.to_owned(), Ok(hash.0)));
        Ok(())
    }
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): short, and not for secrets.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn update(&mut self, bytes: &[u8]) {
        for block in bytes.chunks(1024) {
            tailwater::poll();
            self.0 = block
                .iter()
                .fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        }
    }
}
