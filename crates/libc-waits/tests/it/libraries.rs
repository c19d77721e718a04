//! All sites of glibc 2.31, 2.35, 2.36, 2.39 and 2.41, and of the libgomp beside each, as their
//! packages have them.
//!
//! `expected/` has a file for each package, with the build id, the number of system calls that are
//! left alone, and all sites of each library. `TAILWATER_LIBCS` names a folder of unpacked
//! packages, as `.ci/libcs` fetches them; each is compared. Without it, the library that this
//! program runs on is: with its file if there is one for its build, else its sites are only checked
//! for being complete. `TAILWATER_LIBCS_UPDATE=1` writes the files anew.

use object::LittleEndian;
use object::read::elf::{ElfFile64, ProgramHeader};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use tailwater_libc_waits::image::{Image, Segment};
use tailwater_libc_waits::sites::{FUTEX, Found, JUMP, Number, find};

/// Names of the files that are looked at: 2.31 has its version in them.
const NAMES: [&str; 6] = [
    "ld-2.31.so",
    "ld-linux-x86-64.so.2",
    "libc-2.31.so",
    "libc.so.6",
    "libgomp.so.1.0.0",
    "libpthread-2.31.so",
];
/// Longest line of an expectation.
const COLUMNS: usize = 100;

/// A library that was read.
struct Library {
    build_id: String,
    name: String,
    report: String,
}

/// Reads a library, checks that its sites are all there are, and describes them.
fn read(path: &Path) -> Library {
    let data = fs::read(path).unwrap();
    let elf = ElfFile64::<LittleEndian>::parse(&*data).unwrap();
    let (mut segments, mut frames) = (Vec::new(), 0);
    for header in elf.elf_program_headers() {
        let address = header.p_vaddr(LittleEndian);
        if header.p_type(LittleEndian) == object::elf::PT_LOAD {
            let bytes = header.data(LittleEndian, &*data).unwrap();
            let executable = header.p_flags(LittleEndian).0 & object::elf::PF_X.0 != 0;
            segments.push(Segment { address, bytes, executable });
        } else if header.p_type(LittleEndian) == object::elf::PT_GNU_EH_FRAME {
            frames = address;
        }
    }
    let image = Image::new(segments, frames).unwrap();
    let found = find(&image);
    check(&image, &found, path);
    let build_id = object::Object::build_id(&elf).unwrap().unwrap_or_default();
    let build_id = build_id.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    });
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    let report = report(&name, &build_id, &found);
    Library { build_id, name, report }
}

/// Checks what holds for every library: all can be redirected, and an independent search by bytes
/// finds no other site.
fn check(image: &Image<'_>, found: &Found, path: &Path) {
    assert!(found.unfit.is_empty(), "{}: {:?}", path.display(), found.unfit);
    assert!(!found.sites.is_empty(), "{}", path.display());
    for site in &found.sites {
        let moved: usize = site.moved.iter().map(iced_x86::Instruction::len).sum();
        assert!(moved >= JUMP && site.start() + moved as u64 == site.syscall, "{site:?}");
    }
    let sites: BTreeSet<_> = found.sites.iter().map(|site| site.syscall).collect();
    let mut load = vec![0xb8]; // mov eax, FUTEX
    load.extend(FUTEX.to_le_bytes());
    for segment in image.executable() {
        for at in
            (0..segment.bytes.len().saturating_sub(20)).filter(|&at| segment.bytes[at..].starts_with(&load))
        {
            // Within the next three instructions or so, without a call or jump between.
            let behind = &segment.bytes[at + load.len()..at + load.len() + 8];
            if let Some(offset) = behind.windows(2).position(|window| window == [0x0f, 0x05]) {
                let syscall = segment.address + (at + load.len() + offset) as u64;
                assert!(sites.contains(&syscall), "{}: {syscall:#x} was not found", path.display());
            }
        }
    }
}

fn report(name: &str, build_id: &str, found: &Found) -> String {
    let mut text = format!("{name} {build_id}\n{} others, {} sites\n", found.others, found.sites.len());
    let mut line = String::new();
    for site in &found.sites {
        let kind = match site.number {
            Number::Futex => "futex",
            Number::Cancellable => "cancellable",
            Number::Any => "any",
        };
        let entry = format!("{:x}-{:x}:{kind}", site.start(), site.syscall);
        if line.len() + entry.len() + 1 > COLUMNS {
            writeln!(text, "{line}").unwrap();
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&entry);
    }
    writeln!(text, "{line}").unwrap();
    text
}

fn expected() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/expected")
}

/// Returns the libraries in a folder, in order of their paths.
fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(folder) = todo.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file() && NAMES.iter().any(|name| entry.file_name() == *name) {
                found.push(entry.path());
            }
        }
    }
    found.sort_by_key(|path| path.file_name().unwrap().to_owned());
    found
}

#[test]
fn the_sites_of_the_packages_are_those_expected() {
    let Some(folder) = std::env::var_os("TAILWATER_LIBCS") else {
        println!("skipped: TAILWATER_LIBCS names no folder of packages; .ci/libcs fetches them");
        return;
    };
    let mut packages: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    packages.sort();
    assert!(!packages.is_empty());
    let mut differences = String::new();
    for package in packages {
        let text: String = libraries_in(&package).iter().map(|path| read(path).report).collect();
        let file = expected().join(package.file_name().unwrap()).with_added_extension("txt");
        if std::env::var_os("TAILWATER_LIBCS_UPDATE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != text {
            writeln!(differences, "{}:\n{text}", file.display()).unwrap();
        }
    }
    assert!(differences.is_empty(), "found is not what is expected:\n{differences}");
}

#[test]
fn the_sites_of_the_loaded_library_are_complete() {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let is_looked_at = |path: &&str| NAMES.contains(&path.rsplit('/').next().unwrap_or_default());
    let paths: BTreeSet<_> = paths.filter(is_looked_at).collect();
    assert!(!paths.is_empty(), "no C library in {maps}");
    let files =
        fs::read_dir(expected()).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    let known: String = files.collect();
    for path in paths {
        let library = read(Path::new(path));
        if known.contains(&library.build_id) {
            assert!(
                known.contains(&library.report),
                "{path} has other sites than expected:\n{}",
                library.report
            );
        } else {
            println!(
                "skipped: {} of build {} is not among the expected ones",
                library.name, library.build_id
            );
        }
    }
}
