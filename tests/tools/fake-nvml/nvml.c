// A fake libnvidia-ml. Before each call it reads a script, the file of its own path with ".script"
// appended, with lines "KEY VALUE":
//
//   machine gb10 | discrete | mig | none   the GPUs of the machine
//   gpu NAME|TOTAL|USED|FREE|NODE          one GPU instead of a machine's, in MiB; "-" is unsupported
//   error FUNCTION CODE                    the call returns that code
//   hang FUNCTION                          the call does not return while the line is there
//   stuck FUNCTION                         like hang, asleep in the kernel (state D)
//   slow FUNCTION MILLISECONDS             the call takes so long
//   crash FUNCTION                         the call aborts
//   garbage                                impossible numbers
//   zeros                                  memory is reported as 0 instead of as unsupported
//   noise                                  each call prints to standard output and error
//   process PID BYTES                      a process on the first GPU; -1 is "not available"
//
// -DWITHOUT_X leaves out functions. Each call is appended to the file ".calls".

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int code;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, GPU_IS_LOST = 15 };

struct device {
  int index;
  int part;  // of a MIG device, from 1 on
};
static struct device devices[8];
static struct device parts[8];

static char script[4096];
static char names[2][4096];

static const char *path_of(int which, const char *ending) {
  Dl_info info;
  if (!names[which][0] && dladdr(devices, &info))
    snprintf(names[which], sizeof names[which], "%s%s", info.dli_fname, ending);
  return names[which];
}

// Allocates nothing: it is called between vfork and _exit, too.
static void read_script(void) {
  int file = open(path_of(0, ".script"), O_RDONLY | O_CLOEXEC);
  ssize_t length = file < 0 ? 0 : read(file, script, sizeof script - 1);
  script[length > 0 ? length : 0] = 0;
  if (file >= 0) close(file);
}

// The rest of the line with that key, and with that first word if one is given; null without one.
static const char *line(const char *key, const char *word) {
  for (const char *at = script; at && *at;) {
    size_t length = strlen(key);
    if (!strncmp(at, key, length) && (at[length] == ' ' || at[length] == '\n' || !at[length])) {
      const char *rest = at + length + (at[length] == ' ');
      size_t wanted = word ? strlen(word) : 0;
      if (!wanted) return rest;
      if (!strncmp(rest, word, wanted) && (rest[wanted] == ' ' || rest[wanted] == '\n'))
        return rest + wanted;
    }
    at = strchr(at, '\n');
    if (at) at++;
  }
  return NULL;
}

static void pause_a_moment(void) {
  struct timespec moment = {0, 20 * 1000 * 1000};
  nanosleep(&moment, NULL);
}

static int machine(const char *name) {
  return line("machine", name) != NULL;
}

// The begin of every call; a code other than SUCCESS is its result.
static code begin(const char *function) {
  read_script();
  int calls = open(path_of(1, ".calls"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (calls >= 0) dprintf(calls, "%s\n", function), close(calls);
  if (line("noise", NULL)) {
    printf("{\"version\":1,\"number\":1,\"result\":\"%s\"}\n", function);
    fflush(stdout);
    fprintf(stderr, "noise of %s\n", function);
  }
  if (line("crash", function)) abort();
  const char *slow = line("slow", function);
  if (slow) usleep(1000 * atoi(slow));
  while (line("hang", function)) pause_a_moment(), read_script();
  if (line("stuck", function)) {
    // The caller of vfork(2) sleeps in state D until its child has ended.
    pid_t parent = getpid();
    if (vfork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (int times = 0; line("stuck", function) && times < 3000; times++) {
        if (getppid() != parent) break;
        pause_a_moment();
        read_script();
      }
      _exit(0);
    }
  }
  const char *error = line("error", function);
  return error ? (code)atoi(error) : SUCCESS;
}

#define BEGIN                            \
  do {                                   \
    code answer = begin(__func__);       \
    if (answer != SUCCESS) return answer; \
  } while (0)

// Field `field` of the line of GPU `index`; null without one.
static const char *own(int index, int field, char *to, size_t length) {
  for (const char *at = script; at && *at;) {
    if (!strncmp(at, "gpu ", 4) && index-- == 0) {
      const char *from = at + 4;
      while (field-- > 0) {
        from = strpbrk(from, "|\n");
        if (!from || *from++ == '\n') return NULL;
      }
      size_t end = strcspn(from, "|\n");
      snprintf(to, length, "%.*s", (int)end, from);
      return to;
    }
    at = strchr(at, '\n');
    if (at) at++;
  }
  return NULL;
}

static int own_gpus(void) {
  char name[256];
  int count = 0;
  while (own(count, 0, name, sizeof name)) count++;
  return count;
}

static int gpus(void) { return own_gpus() ? own_gpus() : machine("gb10") ? 1 : machine("discrete") ? 2 : machine("mig"); }

static code text(char *to, unsigned length, const char *from) {
  if (strlen(from) >= length) return SMALL;
  strcpy(to, from);
  return SUCCESS;
}

#ifndef WITHOUT_INIT
code nvmlInit_v2(void) { BEGIN; return SUCCESS; }
#endif
#ifndef WITHOUT_SHUTDOWN
code nvmlShutdown(void) { BEGIN; return SUCCESS; }
#endif
code nvmlSystemGetDriverVersion(char *to, unsigned length) {
  BEGIN;
  return text(to, length, "580.95.05");
}
code nvmlSystemGetNVMLVersion(char *to, unsigned length) {
  BEGIN;
  return text(to, length, "13.580.95.05");
}
#ifndef WITHOUT_COUNT
code nvmlDeviceGetCount_v2(unsigned *count) {
  BEGIN;
  *count = line("garbage", NULL) ? 4000000000u : (unsigned)gpus();
  return SUCCESS;
}
#endif
code nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  BEGIN;
  if (index >= 8) return INVALID;
  devices[index].index = (int)index;
  *device = &devices[index];
  return SUCCESS;
}
code nvmlDeviceGetName(struct device *device, char *to, unsigned length) {
  BEGIN;
  if (line("garbage", NULL)) return text(to, length, "\xff\x1b[31m");
  char name[256];
  if (own(device->index, 0, name, sizeof name)) return text(to, length, name);
  if (device->part) return text(to, length, "NVIDIA H200 MIG 1g.18gb");
  return text(to, length, machine("gb10") ? "NVIDIA GB10" : "NVIDIA H200");
}
code nvmlDeviceGetUUID(struct device *device, char *to, unsigned length) {
  BEGIN;
  char uuid[64];
  snprintf(uuid, sizeof uuid, "%s-00000000-0000-0000-0000-00000000000%d",
           device->part ? "MIG" : "GPU", device->part ? device->part : device->index);
  return text(to, length, uuid);
}
struct pci {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char address[32];
};
code nvmlDeviceGetPciInfo_v3(struct device *device, struct pci *pci) {
  BEGIN;
  memset(pci, 0, sizeof *pci);
  const char *domain = machine("gb10") ? "0000000F" : "00000000";
  snprintf(pci->address, sizeof pci->address, "%s:%02X:00.0", domain, device->index + 1);
  return SUCCESS;
}
code nvmlDeviceGetComputeMode(struct device *device, unsigned *mode) {
  BEGIN;
  (void)device;
  *mode = line("garbage", NULL) ? 77 : 0;
  return SUCCESS;
}
struct memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
code nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory *memory) {
  BEGIN;
  if (line("zeros", NULL)) {
    memory->total = memory->reserved = memory->free = memory->used = 0;
    return SUCCESS;
  }
  char amount[64];
  if (own(device->index, 1, amount, sizeof amount)) {
    unsigned long long mib = 1ull << 20;
    if (!strcmp(amount, "-")) return NOT_SUPPORTED;
    memory->total = strtoull(amount, NULL, 10) * mib;
    memory->used = strtoull(own(device->index, 2, amount, sizeof amount), NULL, 10) * mib;
    memory->free = strtoull(own(device->index, 3, amount, sizeof amount), NULL, 10) * mib;
    memory->reserved = memory->total - memory->used - memory->free;
    return SUCCESS;
  }
  if (machine("gb10")) return NOT_SUPPORTED;
  unsigned long long gib = 1ull << 30;
  memory->total = (device->part ? 18 : 140) * gib;
  memory->reserved = gib / 2;
  memory->used = (unsigned long long)(3 + device->index) * gib;
  memory->free = memory->total - memory->reserved - memory->used;
  if (line("garbage", NULL)) memory->used = ~0ull - 1;
  return SUCCESS;
}
code nvmlDeviceGetNumaNodeId(struct device *device, unsigned *node) {
  BEGIN;
  char number[64];
  if (!own(device->index, 4, number, sizeof number) || !strcmp(number, "-")) return NOT_SUPPORTED;
  *node = (unsigned)atoi(number);
  return SUCCESS;
}
struct utilization {
  unsigned gpu, memory;
};
code nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates) {
  BEGIN;
  rates->gpu = line("garbage", NULL) ? 4000 : 41u + (unsigned)device->index;
  rates->memory = machine("gb10") ? 0 : 7;
  return SUCCESS;
}
code nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *celsius) {
  BEGIN;
  (void)device, (void)sensor;
  *celsius = line("garbage", NULL) ? ~0u : 52;
  return SUCCESS;
}
code nvmlDeviceGetPowerUsage(struct device *device, unsigned *milliwatts) {
  BEGIN;
  (void)device;
  *milliwatts = line("garbage", NULL) ? ~0u : 31500;
  return SUCCESS;
}
struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
static code processes(struct device *device, unsigned *count, struct process *to) {
  unsigned found = 0, room = *count;
  if (line("garbage", NULL)) {
    *count = 5000;
    if (!to) return SMALL;
    for (unsigned at = 0; at < room; at++)
      to[at] = (struct process){at * 77777777u, ~0ull - at - 1, at, at};
    return SUCCESS;
  }
  for (const char *at = script; device->index == 0 && at && *at;) {
    long long pid, bytes;
    if (sscanf(at, "process %lld %lld", &pid, &bytes) == 2) {
      if (to && found < room)
        to[found] = (struct process){(unsigned)pid, (unsigned long long)bytes, ~0u, ~0u};
      found++;
    }
    at = strchr(at, '\n');
    if (at) at++;
  }
  *count = found;
  return found > room ? SMALL : SUCCESS;
}
#ifndef WITHOUT_PROCESSES
code nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                             struct process *to) {
  BEGIN;
  return processes(device, count, to);
}
#endif
code nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count,
                                              struct process *to) {
  BEGIN;
  (void)device, (void)to;
  *count = 0;
  return SUCCESS;
}
code nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  BEGIN;
  (void)device;
  if (machine("gb10")) return NOT_SUPPORTED;
  *current = *pending = (unsigned)machine("mig");
  return SUCCESS;
}
code nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
  BEGIN;
  (void)device;
  *count = 7;
  return SUCCESS;
}
code nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                         struct device **part) {
  BEGIN;
  if (index > 1) return NOT_FOUND;
  parts[index] = (struct device){device->index, (int)index + 1};
  *part = &parts[index];
  return SUCCESS;
}
code nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *number) {
  BEGIN;
  if (!device->part) return INVALID;
  *number = (unsigned)device->part + 6;
  return SUCCESS;
}
code nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *number) {
  BEGIN;
  if (!device->part) return INVALID;
  *number = 0;
  return SUCCESS;
}
code nvmlDeviceGetTotalEccErrors(struct device *device, unsigned type, unsigned counter,
                                 unsigned long long *count) {
  BEGIN;
  (void)device, (void)type, (void)counter;
  if (machine("gb10")) return NOT_SUPPORTED;
  *count = 4;
  return SUCCESS;
}
code nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned *is_pending) {
  BEGIN;
  (void)device, (void)is_pending;
  return NOT_SUPPORTED;
}
struct field {
  unsigned id, scope;
  long long timestamp, latency;
  unsigned type;
  code answer;
  union {
    double number;
    unsigned whole;
    unsigned long long large;
  } value;
};
code nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields) {
  BEGIN;
  (void)device;
  for (int at = 0; at < count; at++) {
    fields[at].type = line("garbage", NULL) ? 99 : 1;
    fields[at].answer = SUCCESS;
    switch (fields[at].id) {
      case 144: fields[at].value.whole = 1; break;
      case 145: fields[at].value.whole = 0; break;
      case 230: fields[at].value.whole = 2; break;
      default: fields[at].answer = NOT_SUPPORTED;
    }
    if (machine("gb10")) fields[at].answer = NOT_SUPPORTED;
  }
  return SUCCESS;
}
