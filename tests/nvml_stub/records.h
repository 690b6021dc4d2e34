/* Readers of the records of a world file: WORLD.md has their format, load.c the table of keys. */
#ifndef STUB_RECORDS_H
#define STUB_RECORDS_H

#include "lex.h"
#include "world.h"

struct record {
    const char *key;
    bool (*read)(struct line *line, struct world *world, const struct record *record);
    int kind;                     /* of value, list or fault */
    unsigned at_least, at_most;   /* numbers in the record; a missing one repeats the one before */
    uint64_t limit;               /* of each number; 0: negative numbers are allowed */
    bool on_mig;                  /* may have a MIG instance as subject */
    size_t field, field_is_known; /* in struct gpu */
};

bool no_memory(struct line *line);
bool next_gpu(struct line *line, struct world *world, uint32_t *index);
bool next_until(struct line *line, int64_t from_us, int64_t *until_us);
/* "0", or "0/2" for the instance in MIG slot 2 of GPU 0; slot is ANYTHING for a GPU. */
bool parse_subject(struct line *line, struct world *world, struct word word, int *gpu, int *slot);
/* "00000000:3B:00.0", with a domain of any length. */
bool parse_bus_id(const char *text, uint32_t *domain, uint32_t *bus, uint32_t *device, uint32_t *function);

typedef bool record_reader(struct line *line, struct world *world, const struct record *record);
record_reader read_epoch, read_driver_version, read_nvml_version, read_cuda_version, read_root, read_process_name;
record_reader read_gpu, read_gpu_numbers, read_serial, read_pci, read_event_types, read_row_mode, read_sizing;
record_reader read_value, read_list, read_rows, read_sample, read_mig, read_accounting, read_event;

#endif
