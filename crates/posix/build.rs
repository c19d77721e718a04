//! Keeps symbols of other crates, the runtime's `malloc` among them, out of the library's exports.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
    println!("cargo:rerun-if-changed=build.rs");
}
