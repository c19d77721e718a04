//! Writes the seeds into `corpus/`, over what is there: `cargo run --example write_seeds
//! --no-default-features`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    for (target, _) in tailwater_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
        std::fs::create_dir_all(&folder)?;
        for (name, bytes) in tailwater_fuzz::seeds::of(target) {
            std::fs::write(folder.join(format!("seed-{name}")), bytes)?;
        }
    }
    Ok(())
}
