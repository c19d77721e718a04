//! Makes what is installed beside the library, where cargo-c builds it: `libtailwater-malloc`, and
//! what pkg-config and CMake read. Does nothing for cargo.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "capi")]
    {
        let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
        println!("cargo::rerun-if-changed=c");
        println!("cargo::rerun-if-changed=include");
        let lib = std::path::Path::new(&folder).join("lib");
        if let Err(error) = tailwater_xtask::install_beside_cargo_c(&lib) {
            println!("cargo::error={error:#}");
        }
    }
}
