//! Files that commands write.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// Writes `content` to the file `path`, to its last byte.
///
/// # Errors
/// If the file cannot be written, or its content not be made.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let attempt = || -> anyhow::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        content(&mut out)?;
        Ok(out.flush()?)
    };
    attempt().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_for_the_last_bytes_is_an_error() {
        let error = write(Path::new("/dev/full"), |out| Ok(out.write_all(b"{}")?)).unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error:#}");
    }
}
