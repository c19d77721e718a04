//! Thread-locals of libraries that are opened while user threads run.
//!
//! Needs a C compiler; prints why it is skipped otherwise.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use tailwater::thread;
use tailwater_testkit::own_process;

/// A variable with an initial value, and a large one without.
const SOURCE: &str = "
__thread int first = FIRST;
__thread int zeros[64];
int *get(int number) { return number == 0 ? &first : &zeros[63]; }
";

/// Where a library has its variables.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// In the block of each thread.
    Fixed,
    /// In memory that each thread allocates at the first use.
    Allocated,
}

/// The variables of a library, for the calling thread.
#[derive(Clone, Copy)]
struct Library(extern "C" fn(i32) -> *mut i32);

impl Library {
    /// Builds one whose first value is this, and opens it; returns why it could not.
    fn open(folder: &Path, first: i32, place: Place) -> Result<Self, String> {
        let path = folder.join(format!("{first}.so"));
        let source = folder.join("library.c");
        std::fs::write(&source, SOURCE).unwrap();
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let model = if place == Place::Fixed { "initial-exec" } else { "global-dynamic" };
        let (model, first) = (format!("-ftls-model={model}"), format!("-DFIRST={first}"));
        let options = ["-shared", "-fPIC", &model, &first, "-o"];
        let output = Command::new(&compiler).args(options).arg(&path).arg(&source).output();
        let output = output.map_err(|error| format!("{compiler:?}: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library has no constructors, stays loaded, and has this function.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            if library.is_null() {
                return Err(CStr::from_ptr(libc::dlerror()).to_string_lossy().into_owned());
            }
            let get = libc::dlsym(library, c"get".as_ptr());
            Ok(Self(core::mem::transmute::<*mut libc::c_void, extern "C" fn(i32) -> *mut i32>(get)))
        }
    }

    /// Returns the calling thread's values.
    fn values(self) -> [i32; 2] {
        // SAFETY: the library returns the addresses of variables of this thread.
        [0, 1].map(|number| unsafe { *self.0(number) })
    }

    /// Sets both to this.
    fn set(self, value: i32) {
        // SAFETY: as in `values`.
        (0..2).for_each(|number| unsafe { *self.0(number) = value });
    }
}

/// Starts threads one after the other and side by side, with stacks of two sizes. Each finds what
/// the libraries give a new thread, and keeps what it has written while others run.
fn new_threads_find_initial_values(libraries: &[(Library, i32)]) {
    let body = |mark: i32| {
        for &(library, first) in libraries {
            assert_eq!(library.values(), [first, 0]);
            library.set(mark);
        }
        thread::yield_now();
        libraries.iter().for_each(|(library, _)| assert_eq!(library.values(), [mark; 2]));
    };
    for mark in 100..120 {
        thread::scope(|scope| {
            scope.spawn(move || body(mark));
        });
        let sized = thread::Builder::new().stack_size(1 << 17);
        thread::scope(|scope| {
            sized.spawn_scoped(scope, move || body(-mark)).unwrap();
        });
    }
    thread::scope(|scope| {
        (200..300).for_each(|mark| drop(scope.spawn(move || body(mark))));
    });
}

#[test]
fn new_threads_have_the_initial_values_of_libraries_opened_meanwhile() {
    own_process(|| {
        let folder = tempfile::tempdir().unwrap();
        tailwater::RuntimeBuilder::new()
            .kthreads(2)
            .run(move || {
                // Stacks that were made, and used, before.
                (0..50).for_each(|_| thread::spawn(thread::yield_now).join().unwrap());
                let fixed = match Library::open(folder.path(), 42, Place::Fixed) {
                    Ok(library) => library,
                    Err(reason) => return println!("skipped: no library to open: {reason}"),
                };
                // This thread has run meanwhile.
                assert_eq!(fixed.values(), [0; 2]);
                fixed.set(7);
                new_threads_find_initial_values(&[(fixed, 42)]);
                let allocated = Library::open(folder.path(), 52, Place::Allocated).unwrap();
                let again = Library::open(folder.path(), 62, Place::Fixed).unwrap();
                new_threads_find_initial_values(&[(fixed, 42), (allocated, 52), (again, 62)]);
                assert_eq!(fixed.values(), [7; 2]);
                assert_eq!((allocated.values(), again.values()), ([52, 0], [0; 2]));
                let of_linux = tailwater::blocking(|| [fixed, allocated, again].map(Library::values));
                assert_eq!(of_linux, [[42, 0], [52, 0], [62, 0]], "an ordinary thread");
            })
            .unwrap();
    });
}
