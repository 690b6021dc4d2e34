/* sleeper DEV_DIR GPUS PER_GPU MAPPINGS BYSTANDERS: processes that have the device files of a GPU open and mapped.
 *
 * Prints their pids, one per line: the first is on GPU 0, the next on GPU 1, and so on in turn; then the pids of
 * bystanders, which use no GPU. They end with this program, and it ends when its standard input does.
 *
 * Processes on a GPU and every fourth bystander wake ten times a second, as a process that drives a GPU does; the other
 * bystanders sleep. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static const struct timespec between = {0, 100000000};

static int open_device(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, O_RDWR);
    if (file < 0)
        exit(1);
    return file;
}

/* Adjacent mappings of different protection are separate lines of maps; one in ten is of managed memory. */
static void map(int uvm, int mappings) {
    for (int i = 0; i < mappings; i++) {
        int protection = i % 2 ? PROT_READ : PROT_READ | PROT_WRITE;
        if (i % 10 == 0)
            mmap(NULL, 4096, protection, MAP_SHARED, uvm, 0);
        else
            mmap(NULL, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
}

static void sleep_as(const char *directory, int gpu, int number, int mappings, pid_t parent) {
    char name[32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        exit(1);
    snprintf(name, sizeof name, "job-%d", number);
    prctl(PR_SET_NAME, name);
    if (gpu >= 0) {
        open_device(directory, "nvidiactl");
        int uvm = open_device(directory, "nvidia-uvm");
        snprintf(name, sizeof name, "nvidia%d", gpu);
        open_device(directory, name);
        map(uvm, mappings);
    }
    for (;;)
        if (gpu < 0 && number % 4)
            pause();
        else
            nanosleep(&between, NULL);
}

int main(int count, char **arguments) {
    if (count != 6)
        return 2;
    int gpus = atoi(arguments[2]), per_gpu = atoi(arguments[3]), mappings = atoi(arguments[4]);
    int holders = gpus * per_gpu, bystanders = atoi(arguments[5]);
    pid_t self = getpid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (int i = 0; i < holders + bystanders; i++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            int null = open("/dev/null", O_RDWR);
            dup2(null, 0);
            dup2(null, 1);
            sleep_as(arguments[1], i < holders ? i % gpus : -1, i, mappings, self);
        }
        printf("%d\n", (int)child);
    }
    fflush(stdout);
    char ignored;
    while (read(0, &ignored, 1) > 0)
        ;
    return 0;
}
