/* A process with a file of its own FUSE file system that stops to answer.
 *
 *   fuse stat  DIRECTORY FUSE_NODE UID   keeps DIRECTORY/dev/nvidia0 open; stat() of it never returns
 *   fuse fault DIRECTORY FUSE_NODE UID   waits for a page of the file with mmap_lock held, and for mmap_lock to write:
 *                                        reads of /proc/<pid>/environ and cmdline never return
 *
 * Started as root, it mounts with allow_other, as fusermount3 does for a user where /etc/fuse.conf permits it, and
 * becomes UID. The kernel asks the server of a mount without allow_other only for processes of its user
 * (fuse_allow_current_process in fs/fuse/dir.c). It prints "ready" and ends with its standard input.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOT = FUSE_ROOT_ID, DEV, FILE_NODE, SIZE = 1 << 20 };

static volatile char *page;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* ---- the server ---- */

static void reply(int fd, uint64_t unique, int error, const void *data, size_t size) {
    char buffer[512];
    struct fuse_out_header header = {.len = sizeof header + size, .error = error, .unique = unique};
    memcpy(buffer, &header, sizeof header);
    memcpy(buffer + sizeof header, data, size);
    if (write(fd, buffer, header.len) < 0 && errno != ENOENT)
        fail("reply");
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};
    attr.mode = node == FILE_NODE ? S_IFREG | 0777 : S_IFDIR | 0777;
    attr.size = node == FILE_NODE ? SIZE : 0;
    return attr;
}

static void serve(int fd, int answers_getattr) {
    static char request[FUSE_MIN_READ_BUFFER * 16];
    int reads = 0, opened = 0;
    for (;;) {
        ssize_t size = read(fd, request, sizeof request);
        if (size < 0 && (errno == EINTR || errno == ENOENT))
            continue;
        if (size < 0)
            return;
        struct fuse_in_header *header = (struct fuse_in_header *)request;
        uint64_t node = header->nodeid;
        if (header->opcode == FUSE_INIT) {
            const struct fuse_init_in *in = (const struct fuse_init_in *)(header + 1);
            struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};
            out.max_readahead = in->max_readahead;
            reply(fd, header->unique, 0, &out, sizeof out);
        } else if (header->opcode == FUSE_GETATTR) {
            if (node == FILE_NODE && opened && !answers_getattr)
                continue; /* never answered */
            struct fuse_attr_out out = {.attr = attributes(node)};
            reply(fd, header->unique, 0, &out, sizeof out);
        } else if (header->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out out = {.nodeid = node + 1, .attr = attributes(node + 1), .entry_valid = 1000};
            reply(fd, header->unique, 0, &out, sizeof out);
        } else if (header->opcode == FUSE_OPEN) {
            struct fuse_open_out out = {.fh = 1};
            opened = 1;
            reply(fd, header->unique, 0, &out, sizeof out);
        } else if (header->opcode == FUSE_READ) {
            /* The kernel waits for the first tries without mmap_lock, and for the one after their failure with it. */
            if (reads++ < 2)
                reply(fd, header->unique, -EIO, "", 0);
        } else if (header->opcode != FUSE_FORGET && header->opcode != FUSE_BATCH_FORGET) {
            reply(fd, header->unique, -ENOSYS, "", 0);
        }
    }
}

/* ---- the process ---- */

static void *touch(void *unused) {
    (void)unused;
    return (void *)(long)page[0];
}

static void *map(void *unused) {
    (void)unused;
    sleep(1);
    return mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

int main(int count, char **words) {
    if (count != 5)
        return 2;
    const char *directory = words[2];
    unsigned uid = atoi(words[4]);
    int fuse = open(words[3], O_RDWR | O_CLOEXEC);
    if (fuse < 0)
        fail(words[3]);
    char options[128], path[4096];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%u,group_id=%u,allow_other", fuse, uid, uid);
    if (mount("fuse", directory, "fuse", MS_NOSUID | MS_NODEV, options))
        fail("mount");
    if (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
        fail("setresuid");
    prctl(PR_SET_DUMPABLE, 1); /* cleared by setresuid */
    pid_t parent = getpid(), server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent)
            serve(fuse, strcmp(words[1], "stat") != 0);
        _exit(0);
    }
    close(fuse);
    snprintf(path, sizeof path, "%s/dev/nvidia0", directory);
    int file = open(path, O_RDWR);
    if (file < 0)
        fail(path);
    if (strcmp(words[1], "fault") == 0) {
        page = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, file, 0);
        if (page == MAP_FAILED)
            fail("mmap");
        pthread_t toucher, mapper;
        pthread_create(&toucher, NULL, touch, NULL);
        pthread_create(&mapper, NULL, map, NULL);
        sleep(2);
    }
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    kill(server, SIGKILL); /* the kernel gives up what waits for it */
    _exit(0);
}
