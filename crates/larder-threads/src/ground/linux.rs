//! Linux.

pub(crate) use larder_sys::arena::Arena;
pub(crate) use larder_sys::thread::tid;
pub(crate) use larder_sys::{red_zone, signal, tls};

use larder_sys::thread::with_spilled_registers;

/// Calls `f` with an address below which nothing is live: all that the caller held in registers lies at or above it
/// until `f` returns.
pub(crate) fn with_registers_spilled<F: FnOnce(usize) -> R, R>(f: F) -> R {
    struct Call<F, R> {
        f: Option<F>,
        result: Option<R>,
    }
    extern "C" fn run<F: FnOnce(usize) -> R, R>(sp: *mut u8, call: *mut u8) {
        // SAFETY: the local of the function below, which names the same types.
        let call = unsafe { &mut *call.cast::<Call<F, R>>() };
        call.result = call.f.take().map(|f| f(sp.addr()));
    }
    let mut call = Call { f: Some(f), result: None };
    with_spilled_registers(run::<F, R>, (&raw mut call).cast());
    call.result.expect("`run` was called")
}
