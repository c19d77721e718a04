//! Procedural macros of the `tailwater` crate; use them through it.

mod expand;
mod preemptible;

use proc_macro::TokenStream;

/// Turns `fn main` into a Tailwater program: installs the allocator guard and runs the body as the
/// first user thread of a runtime configured by `TAILWATER_*` variables (see
/// `tailwater::RuntimeBuilder`).
///
/// A runtime that cannot start ends the program with exit code 1 and the reason on standard error.
///
/// With `#[tailwater::main(allocator = ALLOC)]` the program declares the allocator guard itself, in
/// the static `ALLOC`: see `tailwater::Alloc`.
#[proc_macro_attribute]
pub fn main(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::main(arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Turns a function into a test whose body runs as a user thread.
///
/// A process has one runtime, and the tests of a binary run in one process: the first test starts
/// the runtime (see `tailwater::testing`), and all share it. The test may return anything that
/// implements `std::process::Termination`, and may have `#[ignore]` and `#[should_panic]`.
///
/// The test binary needs the allocator guard, once. A program with `#[tailwater::main]` has it; a
/// library and a file in `tests/` declare it by `tailwater::allocator!();`
///
/// The test harness does not capture the output of user threads.
#[proc_macro_attribute]
pub fn test(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::test(&arguments.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Puts poll points into a function, an `impl` or a module: into its loops, in closures and async
/// blocks too, at the entry of the function, and within the `impl` or module into one of the
/// functions that call each other in a circle.
///
/// A thread in such code gives way within a microsecond or a few when the IOKernel reclaims its
/// core or its quantum is over; see `tailwater::poll`. Poll points are spaced: a loop with other
/// loops in it polls each time, others count what their bodies are estimated to cost, and a tight
/// `for` over a range or a slice runs in chunks, which the compiler can still make vector code.
///
/// A count is one subtraction and one branch. In loops of a few nanoseconds that are over soon,
/// such as those of a parser, it can be felt: measure (examples: `tailwater-lab bench dispatch`).
///
/// Not seen: loops in functions that are called, such as those of `Iterator::sum` and `for_each`,
/// in the arguments of macros, and in `const` functions. Where a piece of code must not be left,
/// `tailwater::no_preempt` keeps it together.
///
/// # Examples
/// ```ignore
/// #[tailwater::preemptible]
/// fn checksum(blocks: &[[u8; 64]]) -> u32 {
///     let mut sum = 0u32;
///     for block in blocks {
///         for byte in block {
///             sum = sum.rotate_left(5) ^ u32::from(*byte);
///         }
///     }
///     sum
/// }
/// ```
#[proc_macro_attribute]
pub fn preemptible(arguments: TokenStream, item: TokenStream) -> TokenStream {
    preemptible::preemptible(&arguments.into(), item.into())
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
