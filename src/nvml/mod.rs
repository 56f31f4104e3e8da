//! Queries the NVIDIA driver, in a process of its own. While the driver waits for memory, its
//! caller waits in the kernel and cannot be killed. Nothing else in this program loads its library.

mod device;

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, Read, Write};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::model::{GpuDevice, GpuPicture};
use crate::parse::gpu::{
    GpuRequest, MAX_DEVICES, MAX_REQUEST_BYTES, MissingGpuPart, QueryResult, Response, Unavailable,
    VERSION, cut,
};
use crate::sys::nvml::InstanceNumbers;

/// Names of the library: for the loader, and its paths in containers, in WSL and on NixOS.
const LIBRARIES: [&str; 8] = [
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
];

/// Responds to requests until the input ends or the driver is unavailable.
///
/// # Errors
/// A request cannot be read, or a response cannot be written.
pub fn serve(library: Option<&Path>, mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let mut driver: Option<Driver> = None;
    while let Some(request) = next(&mut from)? {
        let picture = match &driver {
            Some(driver) => driver.picture(),
            None => Driver::open(library).and_then(|opened| driver.insert(opened).picture()),
        };
        let is_end = picture.is_err();
        let result = picture.map_or_else(QueryResult::Unavailable, QueryResult::Picture);
        let response = Response { version: VERSION, number: request.number, result };
        let mut line = serde_json::to_vec(&response)?;
        line.push(b'\n');
        to.write_all(&line)?;
        to.flush()?;
        if is_end {
            break;
        }
    }
    Ok(())
}

fn next(from: &mut impl BufRead) -> io::Result<Option<GpuRequest>> {
    let mut line = Vec::new();
    from.take(MAX_REQUEST_BYTES as u64).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let request: GpuRequest = serde_json::from_slice(&line)?;
    match request.version {
        VERSION => Ok(Some(request)),
        other => {
            let why = format!("the request has version {other}; supported: {VERSION}");
            Err(io::Error::new(io::ErrorKind::InvalidData, why))
        }
    }
}

/// The loaded library.
struct Driver {
    /// Never shut down: the call may hang, and fails where a library lacks it. The process exits
    /// instead.
    nvml: ManuallyDrop<Nvml>,
    numbers: Option<InstanceNumbers>,
}

impl Driver {
    /// Loads the library, which connects to the driver.
    fn open(library: Option<&Path>) -> Result<Self, Unavailable> {
        let named: Vec<OsString> = match library {
            Some(path) => vec![path.into()],
            None => LIBRARIES.iter().map(OsString::from).collect(),
        };
        let mut not_found = None;
        for name in &named {
            match Nvml::builder().lib_path(name).init() {
                Ok(nvml) => {
                    let numbers = InstanceNumbers::of(name);
                    return Ok(Self { nvml: ManuallyDrop::new(nvml), numbers });
                }
                Err(NvmlError::LibloadingError(error)) => {
                    // The first error is the loader's. Others only say that a path is missing.
                    not_found.get_or_insert_with(|| cause(&error));
                }
                Err(error) => return Err(lack("cannot initialise NVML", name, &error)),
            }
        }
        let why = not_found.unwrap_or_default();
        Err(Unavailable {
            kind: MissingGpuPart::Library,
            why: format!("cannot load NVML: {why}").into(),
        })
    }

    fn picture(&self) -> Result<GpuPicture, Unavailable> {
        let count = self.nvml.device_count();
        let count = count.map_err(|error| {
            lack("the NVIDIA driver reports no GPU count", OsStr::new(""), &error)
        })?;
        let most = u32::try_from(MAX_DEVICES).unwrap_or(u32::MAX);
        let optional = |text: Result<String, NvmlError>| text.ok().map(Arc::from);
        let mut picture = GpuPicture {
            driver_version: optional(self.nvml.sys_driver_version()),
            nvml_version: optional(self.nvml.sys_nvml_version()),
            devices: (0..count.min(most)).map(|index| self.device(index)).collect(),
            is_cut: count > most,
        };
        cut(&mut picture);
        Ok(picture)
    }

    fn device(&self, index: u32) -> GpuDevice {
        match self.nvml.device_by_index(index) {
            Ok(device) => device::read(index, &device, self.numbers.as_ref()),
            Err(error) => device::lost(index, &error),
        }
    }
}

/// Why the driver is unavailable.
fn lack(what: &str, library: &OsStr, error: &NvmlError) -> Unavailable {
    let kind = match error {
        NvmlError::DriverNotLoaded => MissingGpuPart::Driver,
        _ => MissingGpuPart::Usable,
    };
    let library = library.to_string_lossy();
    let of = if library.is_empty() { String::new() } else { format!(" through {library}") };
    let advice = match error {
        NvmlError::LibRmVersionMismatch => {
            " (library and loaded driver have different versions, as after an upgrade: reboot, or \
             load the new driver)"
        }
        NvmlError::NoPermission => " (check the permissions of /dev/nvidiactl and /dev/nvidia0)",
        _ => "",
    };
    Unavailable { kind, why: format!("{what}{of}: {error}{advice}").into() }
}

/// The innermost error, which is the loader's.
fn cause(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
