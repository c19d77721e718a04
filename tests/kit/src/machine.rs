//! Maps of an eBPF program that runs in a virtual machine of the tests.
//!
//! Owns the one access that such a test needs: what a helper is passed as an address.

/// Returns the integer at an address that a program passed to a helper.
///
/// # Panics
/// If the address is not a multiple of 4.
pub fn integer_at<const BYTES: usize>(address: u64) -> [u8; BYTES] {
    assert_eq!(address % 4, 0);
    // SAFETY: the virtual machine passes the address that the program computed; the programs under
    // test pass addresses within their stack, of a variable of that length, which the kernel's
    // verifier has checked where it is present.
    unsafe { core::ptr::with_exposed_provenance::<[u8; BYTES]>(address as usize).read() }
}
