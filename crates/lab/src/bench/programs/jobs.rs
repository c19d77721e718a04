//! The batch jobs of `bench programs` and of the figure `foreign-batch`: programs of the system.
//!
//! Owns their command lines and the files that they read, which are in a folder of its own and are
//! made by a generator, so that each run has the same. None of them ends within a point: the start
//! of another one, on the generator's core, would be measured.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use tailwater_testbed::folder::Folder;
use tailwater_testbed::program::find;

/// A batch job that was not written for Tailwater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// `xz -T1`, which compresses a file on one thread
    #[value(name = "xz-1")]
    Xz1,
    /// `xz -T4`: the same on four threads
    #[value(name = "xz-4")]
    Xz4,
    /// `cc -O2` of a file in a loop: many short processes
    Cc,
    /// python3, which multiplies matrices
    Python,
    /// ffmpeg, which encodes a generated picture on one thread
    Ffmpeg,
}

/// Size of the text that is compressed: 15 s of work at 2 MiB/s.
const TEXT_BYTES: usize = 32 << 20;
/// Functions in the file that is compiled: about 100 ms of work.
const FUNCTIONS: u32 = 60;
/// Multiplies matrices of 60 rows.
const MATRICES: &str = "
n = 60
a = [[float((i * j) % 7) for j in range(n)] for i in range(n)]
while True:
    columns = list(zip(*a))
    b = [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]
    a = [[x % 7.0 for x in row] for row in b]
";

/// Encodes ten minutes of a generated picture, which takes longer than a point, and writes nothing.
const ENCODING: &str = "-nostdin -loglevel error -f lavfi -i testsrc2=size=640x360:rate=30:duration=600 -threads 1 \
    -c:v mpeg4 -f null -";

/// The files that the jobs read.
#[derive(Debug)]
pub struct Files(Folder);

impl Files {
    /// Returns the path of the text that is compressed.
    pub(super) fn text(&self) -> String {
        self.0.path().join("text").display().to_string()
    }

    /// Makes them.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn new() -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let write = |name: &str, text: String| {
            let path = folder.path().join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("text", text())?;
        write("source.c", source())?;
        Ok(Self(folder))
    }
}

impl Job {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xz1 => "xz -T1",
            Self::Xz4 => "xz -T4",
            Self::Cc => "cc -O2",
            Self::Python => "python3",
            Self::Ffmpeg => "ffmpeg",
        }
    }

    /// Returns the program and its arguments; `None` where it is not installed.
    pub fn command(self, files: &Files) -> Option<Vec<String>> {
        let folder = files.0.path();
        let path = |name: &str| Path::new(folder).join(name).display().to_string();
        let (program, words) = match self {
            Self::Xz1 => ("xz", vec!["-6".into(), "-T1".into(), "-kc".into(), path("text")]),
            Self::Xz4 => {
                let words = ["-6", "-T4", "--block-size=1MiB", "-kc"].map(str::to_owned);
                ("xz", words.into_iter().chain([path("text")]).collect())
            }
            Self::Cc => {
                find("cc")?;
                let (source, object) = (path("source.c"), path("object.o"));
                let script = "while cc -O2 -c -o \"$0\" \"$1\"; do :; done";
                ("sh", vec!["-c".into(), script.into(), object, source])
            }
            Self::Python => ("python3", vec!["-c".into(), MATRICES.into()]),
            Self::Ffmpeg => ("ffmpeg", ENCODING.split(' ').map(str::to_owned).collect()),
        };
        let program = find(program)?.display().to_string();
        Some([vec![program], words].concat())
    }
}

/// Returns text that compresses as prose does: words, of which a few are frequent.
fn text() -> String {
    let mut state = 1u64;
    let mut next = move || {
        // Knuth's generator (MMIX), of which the upper bits are used.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let mut text = String::with_capacity(TEXT_BYTES + 16);
    while text.len() < TEXT_BYTES {
        let word = (next() % 4_096) * (next() % 4_096) / 4_096;
        let end = if next() % 12 == 0 { "\n" } else { " " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{word:x}{end}");
    }
    text
}

/// Returns a C source of some functions with loops.
fn source() -> String {
    let function = |n: u32| {
        format!(
            "double f{n}(const double *a, int n) {{\n  double s = {n};\n  for (int i = 0; i < n; i++)\n    \
             for (int j = i; j < n; j++)\n      s += a[i] * a[j] > s ? a[j] / ({n} + i) : a[i] - j;\n  return s;\n}}\n"
        )
    };
    (0..FUNCTIONS).map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_read_files_that_are_there() {
        let files = Files::new().unwrap();
        for job in Job::value_variants() {
            let Some(command) = job.command(&files) else { continue };
            let named = command.iter().filter(|word| word.ends_with("/text") || word.ends_with(".c"));
            assert!(named.clone().all(|path| Path::new(path).exists()), "{command:?}");
            assert_eq!(named.count(), usize::from(!matches!(job, Job::Python | Job::Ffmpeg)));
        }
    }
}
