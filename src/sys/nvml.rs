//! NVML functions that its wrapper lacks: the instance ids of a MIG device.

use std::ffi::{OsStr, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, Symbol};
use nvml_wrapper::Device;

/// `nvmlDeviceGetGpuInstanceId` and `nvmlDeviceGetComputeInstanceId`.
type GetNumber = unsafe extern "C" fn(device: *mut c_void, number: *mut c_uint) -> c_uint;

/// `NVML_SUCCESS`.
const SUCCESS: c_uint = 0;

/// The two functions of a loaded library.
#[derive(Debug)]
pub struct InstanceNumbers {
    gpu: Symbol<GetNumber>,
    compute: Symbol<GetNumber>,
    /// Keeps the symbols valid.
    _library: Library,
}

impl InstanceNumbers {
    /// Finds the functions; `None` if the library lacks them. It must be NVML, already loaded by
    /// its wrapper under the same name.
    pub fn of(library: &OsStr) -> Option<Self> {
        // SAFETY: the library's initialisers ran when the wrapper loaded it. Both symbols have this
        // signature in every version of NVML that has them (nvml.h).
        unsafe {
            let library = Library::open(Some(library), RTLD_LAZY | RTLD_LOCAL).ok()?;
            let gpu = library.get(b"nvmlDeviceGetGpuInstanceId\0").ok()?;
            let compute = library.get(b"nvmlDeviceGetComputeInstanceId\0").ok()?;
            Some(Self { gpu, compute, _library: library })
        }
    }

    /// The ids of the GPU instance and of its compute instance.
    pub fn numbers(&self, part: &Device<'_>) -> (Option<u32>, Option<u32>) {
        (query(&self.gpu, part), query(&self.compute, part))
    }
}

fn query(call: &Symbol<GetNumber>, part: &Device<'_>) -> Option<u32> {
    let mut number: c_uint = 0;
    // SAFETY: the handle is valid as long as the device borrows its library, and `number` until
    // the call returns.
    let answer = unsafe { call(part.handle().cast(), &raw mut number) };
    (answer == SUCCESS).then_some(number)
}
