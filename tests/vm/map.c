// map FILE...: maps the files one after the other and reads each page, 4 MiB in a tenth of a second, as
// an engine loads its model. Then it sleeps until it is killed. Shells cannot map files.
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **names) {
  long page = sysconf(_SC_PAGESIZE);
  volatile char sum = 0;
  for (int i = 1; i < count; i++) {
    int file = open(names[i], O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) return perror(names[i]), 1;
    const char *bytes = mmap(NULL, about.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) return perror(names[i]), 1;
    for (off_t at = 0; at < about.st_size; at += page) {
      sum += bytes[at];
      if (at % (4 << 20) == 0) usleep(100000);
    }
  }
  puts("map: read all");
  fflush(stdout);
  for (;;) pause();
}
