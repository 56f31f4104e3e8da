//! What NVML tells and its wrapper has no call for: which instances a part of a GPU (MIG) is.

use std::ffi::{OsStr, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, Symbol};
use nvml_wrapper::Device;

/// `nvmlDeviceGetGpuInstanceId` and `nvmlDeviceGetComputeInstanceId`.
type GetNumber = unsafe extern "C" fn(device: *mut c_void, number: *mut c_uint) -> c_uint;

/// `NVML_SUCCESS`.
const SUCCESS: c_uint = 0;

/// The two calls of a library that is loaded already.
#[derive(Debug)]
pub struct InstanceNumbers {
    gpu: Symbol<GetNumber>,
    compute: Symbol<GetNumber>,
    /// Before which the calls must not be used.
    _library: Library,
}

impl InstanceNumbers {
    /// Finds them; `None` where this library does not have them. It must be NVML's, and have been
    /// loaded by its wrapper under the same name.
    pub fn of(library: &OsStr) -> Option<Self> {
        // SAFETY: what loading runs has run when the wrapper loaded the same library. Both symbols
        // have this signature in every version of NVML that has them (nvml.h).
        unsafe {
            let library = Library::open(Some(library), RTLD_LAZY | RTLD_LOCAL).ok()?;
            let gpu = library.get(b"nvmlDeviceGetGpuInstanceId\0").ok()?;
            let compute = library.get(b"nvmlDeviceGetComputeInstanceId\0").ok()?;
            Some(Self { gpu, compute, _library: library })
        }
    }

    /// The numbers of the GPU instance and of the compute instance within it.
    pub fn numbers(&self, part: &Device<'_>) -> (Option<u32>, Option<u32>) {
        (ask(&self.gpu, part), ask(&self.compute, part))
    }
}

fn ask(call: &Symbol<GetNumber>, part: &Device<'_>) -> Option<u32> {
    let mut number: c_uint = 0;
    // SAFETY: the handle is valid for as long as the device borrows its library, and `number` lives
    // until the call returns.
    let answer = unsafe { call(part.handle().cast(), &raw mut number) };
    (answer == SUCCESS).then_some(number)
}
