//! What a process has open or maps that may keep memory of a driver alive.

/// One such thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldObject {
    /// A file of the NVIDIA driver. With `/dev/nvidia-uvm` a process may run CUDA; without it, it
    /// at most draws, or asks the driver how it fares.
    Device {
        /// Whether it is that one.
        is_uvm: bool,
    },
    /// A buffer shared with devices (dma-buf).
    DmaBuffer,
    /// A file without a name (memfd_create(2)).
    Memfd,
    /// A pipe (pipe(2)). A FIFO has a path and is none.
    Pipe {
        /// Its inode: both ends have the same.
        inode: u64,
    },
    /// A socket (socket(2)).
    Socket {
        /// Inode of the object.
        inode: u64,
    },
}

/// Files of the driver: `nvidia*` of desktop and data center drivers, the others of Jetson's.
const DEVICES: [&str; 4] = ["/dev/nvidia", "/dev/nvmap", "/dev/nvhost-", "/dev/nvgpu"];

impl HeldObject {
    /// What the link of a descriptor (`/proc/PID/fd/N`), or a path in `/proc/PID/maps`, leads to.
    pub fn of(target: &str) -> Option<Self> {
        if DEVICES.iter().any(|device| target.starts_with(device)) {
            return Some(Self::Device { is_uvm: target.starts_with("/dev/nvidia-uvm") });
        }
        if target.starts_with("/dmabuf:") {
            return Some(Self::DmaBuffer);
        }
        if target.starts_with("/memfd:") {
            return Some(Self::Memfd);
        }
        let (kind, inode) = target.strip_suffix(']')?.split_once(":[")?;
        let inode = inode.parse().ok()?;
        match kind {
            "pipe" => Some(Self::Pipe { inode }),
            "socket" => Some(Self::Socket { inode }),
            _ => None,
        }
    }
}

/// The character devices of the driver in `/proc/devices`: the major number, and whether it is that
/// of `/dev/nvidia-uvm`.
pub fn driver_majors(text: &[u8]) -> Vec<(u32, bool)> {
    let text = String::from_utf8_lossy(text);
    let devices = text.lines().skip_while(|line| *line != "Character devices:").skip(1);
    let devices = devices.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (major, name) = line.trim().split_once(' ')?;
        let is_drivers = DEVICES
            .iter()
            .any(|device| device.strip_prefix("/dev/").is_some_and(|own| name.starts_with(own)));
        is_drivers.then_some((major.parse().ok()?, name == "nvidia-uvm"))
    });
    devices.collect()
}

/// Programs that have the driver open for as long as they run and hold no memory for it: they
/// watch it, or keep it loaded. By `comm`, of which the kernel keeps 15 bytes.
const MONITORS: [&str; 9] = [
    // Those of this program: of another run of it, of a gate or a launch.
    "umawarden-nvml",
    "nvidia-persiste",
    "nvidia-smi",
    "nvidia-powerd",
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-dcgm-exp",
    "nvtop",
    "nvidia-device-p",
];

/// Whether the process is a monitor. A process that could run CUDA is none, despite its name.
pub fn is_monitor(comm: &str, has_uvm: bool) -> bool {
    !has_uvm && MONITORS.contains(&comm)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn links_are_classified_by_their_target() {
        let device = |is_uvm| Some(HeldObject::Device { is_uvm });
        for (target, object) in [
            ("/dev/nvidia0", device(false)),
            ("/dev/nvidiactl", device(false)),
            ("/dev/nvidia-uvm", device(true)),
            ("/dev/nvidia-uvm-tools", device(true)),
            ("/dev/nvidia-caps/nvidia-cap1", device(false)),
            ("/dev/nvmap", device(false)),
            ("/dev/nvme0n1", None),
            ("/dmabuf:", Some(HeldObject::DmaBuffer)),
            ("/memfd:nccl-shm (deleted)", Some(HeldObject::Memfd)),
            ("pipe:[4711]", Some(HeldObject::Pipe { inode: 4711 })),
            ("pipe:[x]", None),
            ("socket:[4711]", Some(HeldObject::Socket { inode: 4711 })),
            ("anon_inode:[eventfd]", None),
            ("/home/me/memfd:", None),
        ] {
            assert_eq!(HeldObject::of(target), object, "{target}");
        }
    }

    #[test]
    fn monitoring_programs_are_recognised_unless_they_can_compute() {
        assert!(is_monitor("nvidia-persiste", false) && is_monitor("umawarden-nvml", false));
        assert!(!is_monitor("nvidia-persiste", true));
        assert!(!is_monitor("python3", false));
        assert!(MONITORS.iter().all(|comm| comm.len() <= 15));
    }

    #[test]
    fn the_majors_of_the_driver_are_found() {
        let text = b"Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n509 nvidia-uvm\n\n\
            Block devices:\n  7 nvidia\n";
        assert_eq!(driver_majors(text), [(195, false), (195, false), (509, true)]);
        assert_eq!(driver_majors(b"195 nvidia\n"), []);
    }

    proptest! {
        #[test]
        fn arbitrary_links_do_not_panic(target in ".{0,64}", devices in ".{0,64}") {
            HeldObject::of(&target);
            driver_majors(format!("Character devices:\n{devices}").as_bytes());
        }
    }
}
